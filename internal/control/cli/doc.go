// Package cli is the command line: the cobra commands and their output. Most commands
// call the API of a running agent. Deps has the functions behind the other commands.
package cli
