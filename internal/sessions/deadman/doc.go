// Package deadman kills a node's containers when its agent can no longer renew the
// node's lease. A deadman is a separate small process of the same binary. The agent
// tells it which containers run and until when. It acts on that deadline and on
// nothing else, so it does not matter whether the agent was killed, hangs, was
// stopped, or waits for a dead store. It outlives the agent, and the next agent
// attaches to it.
//
// The two exchange JSON over a SOCK_SEQPACKET socket (unix(7)) in the agent's run
// directory: one request, one answer. docs/adr/deadman.md has the reasons for this
// design.
package deadman
