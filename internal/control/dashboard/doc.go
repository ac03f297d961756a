// Package dashboard is the agent's pages for people: what the API knows, as
// HTML that the server makes and keeps up to date by server-sent events. It has
// no data of its own: it shows what a Source says, and what a person does goes
// through the API, with the person's own rights.
package dashboard
