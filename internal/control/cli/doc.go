// Package cli is the command line: one cobra command for each thing a person
// can ask for, and what it prints. All but the agent itself, the guardian and
// the benches are calls of a running agent's API.
package cli
