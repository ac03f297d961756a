// Package dashboard has the agent's web pages. The server renders the data of the API
// as HTML and keeps it up to date by server-sent events. The package has no data of its
// own: it reads a Source, and carries out actions through the API with the caller's
// rights.
package dashboard
