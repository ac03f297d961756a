// Package keep holds a client's WebSocket open while its session moves or boots
// anew: it follows the frames (RFC 6455, 5) in both directions, stops between two
// of them when the server goes away, answers the client's Pings meanwhile, asks
// the session's next server for the same upgrade, and goes on.
//
// A frame that its reader has not got whole is not lost with a server, unless it
// is longer than 64 KiB: those go through in pieces, so that memory is bounded.
// Where a server goes away in the middle of such a frame, or of a message of
// several frames, the other side waits for an end that nobody can give it: the
// client's socket is closed then, with 1012 (service restart) where it is between
// two frames. So is one whose time is over. What the client sent to a server
// that has not read it is lost with the server.
//
// A socket costs three goroutines and two buffers of 4 KiB, where a pair of
// package relay costs neither.
package reattach

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"holdfast/internal/platform/tasks"

	"holdfast"
)

// ErrClosed says that the keeper does not run (yet, or any more).
var ErrClosed = errors.New("no keeper of sockets is running")

const (
	// lastReadTime is how long a server that leaves may finish what it says.
	lastReadTime = 250 * time.Millisecond

	// leftWait is how long to wait, when a server on this node has gone
	// without a Close frame, for the news that its session left. The kernel
	// tells of a killed server before anybody else does.
	leftWait = 500 * time.Millisecond

	// linger is how long a client may take to read the Close frame and to
	// hang up. Closing at once would send a reset where bytes of the client
	// are unread, and the reset would overtake the frame.
	linger = time.Second

	// goneWait is how long a server may go on that ignores that its client
	// has gone, or that one of them has said goodbye.
	goneWait = 10 * time.Second

	// writeWait is how long a client may take for what the keeper itself has
	// to say.
	writeWait = 10 * time.Second
)

// restart is the status of a Close frame: service restart (IANA WebSocket Close
// Code Number Registry).
const restart = 1012

// Server is a connection to a session's server that has agreed to the upgrade.
type Server struct {
	Conn  net.Conn
	Ahead []byte // was read from Conn before, and comes first
	// Left is closed when the session leaves; nil for never.
	Left <-chan struct{}
	// Far says that Conn leads to another gateway, which marks the end that a
	// server makes itself (see Spec.Hop). Any other end is the session's.
	Far bool
	// Release is called once when Conn is closed. May be nil.
	Release func()
}

// Outcome is what became of a socket whose server went away.
type Outcome string

// The outcomes.
const (
	Kept   Outcome = "kept"   // it goes on
	Late   Outcome = "late"   // there was no next server in time, or it did not agree
	Torn   Outcome = "torn"   // it was in the middle of a long frame, or of a message
	Client Outcome = "client" // the client went meanwhile
	Ended  Outcome = "ended"  // the gateway stopped meanwhile
)

// Outcomes are all of them.
func Outcomes() []Outcome { return []Outcome{Kept, Late, Torn, Client, Ended} }

// Spec is a socket to keep.
type Spec struct {
	Client net.Conn
	Early  []byte // was read from Client before, and comes first
	Server Server
	Policy holdfast.KeepSockets

	// Next asks for the session's next server. It is called from one goroutine
	// at a time, and given up by the end of ctx.
	Next func(ctx context.Context) (Server, error)

	// PeerForward says that Client is another gateway, which keeps the real one: Next
	// and Policy are not used. A server that leaves ends the connection; one
	// that ends by itself ends it with a mark that no server can send.
	PeerForward bool

	// Outcome is told, once for each server that went away, and for how long
	// the socket has had none. May be nil, as may Done, which is called once
	// when everything is closed.
	Outcome func(Outcome, time.Duration)
	Done    func()
}

// Proxy serves sockets. Its methods may be called from any goroutine.
type Proxy struct {
	pool buffers

	sockets tasks.Group // open while Run is active
}

// New returns a keeper that does nothing before Run.
func New() *Proxy { return &Proxy{} }

// Run serves until ctx is done, then closes every socket (with 1012 where that
// can be said) and returns when all are closed and all Done calls have returned.
// started is called when Add may be used.
func (p *Proxy) Run(ctx context.Context, started func()) error {
	if err := p.sockets.Open(ctx); err != nil {
		return fmt.Errorf("keeper of sockets: %w", err)
	}
	started()
	<-ctx.Done()
	p.sockets.Close()
	return nil
}

// Add takes both connections over: whatever it returns, the caller must not use
// them any more. With an error both are closed, and neither Release nor Done is
// called.
func (p *Proxy) Add(s Spec) error {
	if !p.sockets.Go(func(ctx context.Context) { newSocket(s, &p.pool, ctx).run() }) {
		s.Client.Close()
		s.Server.Conn.Close()
		return fmt.Errorf("keep a socket: %w", ErrClosed)
	}
	return nil
}
