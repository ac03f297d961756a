// Package handoff hands a node over from one agent process to the next on the same
// host, without refused connections.
//
// The running agent starts the next one as a child process (Start) and receives its
// hello. It then stops everything that only one agent may own, and gives the child
// its turn with Next.Go, together with the listening sockets. Connections that
// arrive in between wait in the queues of these sockets. The first process waits
// until the next agent has served for its trial time. When the next agent serves, it also
// gets the open connections of clients (Connections). If the next agent fails, the
// first process serves again: it still has the sockets.
//
// Service runs the agents of one process, Upgrades records how an upgrade goes, and
// Listeners holds the sockets. The two processes talk over a socket pair that the
// child inherits. Service calls an agent through the interface Agent, and does not know
// what an agent does between its start and its end.
package handoff
