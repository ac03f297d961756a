// Package events keeps what happened to the sessions of a node, and tells subscribers: the
// events of the last time (Log), and how the epochs of sessions ended within the last day
// (Endings). Both are files in the agent's data directory, so that they survive the agent.
// Fleet asks all nodes for their endings.
//
// A subscriber has no buffer of its own. All read the same ring, each at its own place. A
// subscriber that falls behind the ring is told how many events it has missed, so neither a
// slow one nor a hung one delays a session.
package events

import "time"

// Bounds.
const (
	ringSize = 4096 // events in memory, of a few hundred bytes each
	// logFile has two parts of logBytes, the present one and the one before.
	logFile  = "session-events.jsonl"
	logBytes = 1 << 20

	endingsFile = "session-endings.jsonl"
	keepEndings = 24 * time.Hour
	maxOfKey    = 10       // endings of one key
	maxEndings  = 2000     // of all keys
	maxBytes    = 4 << 20  // of all endings, as JSON
	rewriteAt   = 8 << 20  // bytes of the file at which it is written anew with what is kept
	fileLimit   = 64 << 20 // bytes; the file is written anew long before
)
