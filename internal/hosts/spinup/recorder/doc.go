// Package recorder records the spin-ups of a host: it measures them with metrics,
// logs the slow ones, and writes them to the store of package spinup.
//
// A Recorder keeps the store open, as an agent with sessions does, or opens it for
// each batch only, so that commands can read it, as the agent of a Kubernetes node
// does (Options.Shared). A Host is a Recorder of an engine: it also knows which
// spin-ups are under way, and records those that other clients of the engine start.
package recorder
