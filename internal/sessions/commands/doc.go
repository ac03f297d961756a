// Package commands runs detached commands in the containers of sessions: commands that
// outlive their caller and the agent.
//
// An engine gives the streams of a command to one connection, and Docker has no call to
// attach to them again. So a small process of the same binary, the command keeper, holds
// the streams (Main). It keeps the last bytes of each command's output in memory, and
// serves HTTP on a unix socket in the agent's run directory. The agent starts it for the
// first command and is its only client (Client). The keeper goes on while agents stop,
// crash and are upgraded. It ends when no command runs and no agent needs it.
//
// The keeper kills nothing: a command is a process of the container, and dies with it.
package commands

import "time"

// Bounds of what a keeper holds.
const (
	// maxOutput is the number of bytes that are kept of one command's output.
	maxOutput = 512 << 10
	// maxBlocks bounds the bookkeeping for output that alternates between the streams.
	maxBlocks = 4096
	// maxOfSession and maxOfNode are the numbers of commands that are kept, running and
	// ended. With maxOutput, a node's output takes 64 MiB at most.
	maxOfSession = 32
	maxOfNode    = 128
	// keepEnded is how long an ended command is kept.
	keepEnded = 10 * time.Minute
	// holdLimit is how long a command waits for a caller that it has to wait for and that
	// does not read.
	holdLimit = 10 * time.Second
	// maxAttached is the number of callers that read one command's output at a time.
	maxAttached = 16
)

const (
	// idleLimit is how long a keeper without a running command stays without an agent,
	// or without any command: an agent that is restarted finds the ended ones.
	idleLimit = time.Minute
	// lookAround is the interval of the checks for it.
	lookAround = time.Second
	// pingEvery is the time in which the keeper notices a lost caller.
	pingEvery = 15 * time.Second
	// leaveLimit is how long commands may still run after SIGTERM, which usually means
	// that the host shuts down. Then systemd waits for this process.
	leaveLimit = 5 * time.Second
	// endLimit bounds the time for callers to read the last output of a keeper that ends.
	endLimit = 2 * time.Second
)
