// Package fleet knows which node serves each session of a fleet, chooses a node for a
// session without an owner, and exchanges requests between nodes
// (docs/adr/peer-forward.md).
//
// The Directory is a copy of the store's session records, updated by a watch. Place
// chooses a node. A Fleet combines the two for the gateway: Acquire returns where a
// session is served, on this node or another one. If no node serves the session yet,
// Acquire waits until its context ends. Only the store's claim decides which node owns
// a session. An error in this package's view of the fleet costs a detour and never
// creates a second container.
package fleet
