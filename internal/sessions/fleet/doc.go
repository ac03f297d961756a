// Package fleet knows where every session of a fleet is served, decides which
// node should have one that nobody serves, and lets nodes ask each other
// (docs/adr/fleet-hop.md).
//
// The Directory is a copy of the store's session records, kept by a watch.
// Place chooses a node. A Fleet joins the two to what a gateway calls: Acquire
// returns where a session is served, here or on another node, and waits for as
// long as its context lets it where that is nowhere yet. Who owns a session is
// decided by the store's claim alone: all that is wrong in this package's
// picture of the world costs a detour, never a second container.
package fleet
