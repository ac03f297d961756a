// Package closing has the timeouts for the end of a relayed connection, and the check
// whether its session has left.
package closing

import (
	"context"
	"net"
	"time"
)

const (
	// LeftWait is how long to wait, after a server has gone without a Close frame
	// or in the middle of an answer, for the signal that its session left. The
	// kernel reports a killed server before that signal arrives.
	LeftWait = 500 * time.Millisecond

	// Timeout is how long a client may take to read the Close frame and to hang
	// up. Closing at once would send a reset if bytes of the client are unread,
	// and the reset would overtake the frame.
	Timeout = time.Second

	// GoneWait is how long the server of a client that has gone, or that has
	// exchanged a Close frame, may take to read what the client had sent, and to
	// end.
	GoneWait = 10 * time.Second

	// Restart is the status code of the Close frame that tells a client that its
	// session left: service restart (IANA WebSocket Close Code Number Registry).
	Restart = 1012
)

// AwaitLeft waits up to LeftWait until left is closed, and reports whether it
// is. The end of ctx ends the wait.
func AwaitLeft(ctx context.Context, left <-chan struct{}) bool {
	timer := time.NewTimer(LeftWait)
	defer timer.Stop()
	select {
	case <-left:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// Closed reports whether c is closed. Nothing may ever be sent to c.
func Closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Write closes the direction to the peer if c supports a half close. It has no
// effect when the peer has gone already.
func Write(c net.Conn) {
	if c, ok := c.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite()
	}
}
