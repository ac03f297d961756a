// Package reattach keeps a client's WebSocket open while its session moves or
// boots again. It follows the frames (RFC 6455, 5) in both directions and stops
// between two frames when the server goes away. Meanwhile it answers the
// client's Pings and sends the same upgrade request to the session's next
// server. Then it relays again.
//
// A frame that the reader has not received completely is not lost with a
// server, unless it is longer than 64 KiB: longer frames pass through in
// pieces, so that memory is bounded. If a server goes away in the middle of
// such a frame, or of a fragmented message, no other server can complete it.
// The client's connection is then closed, with 1012 (service restart) if it is
// between two frames. The same happens when the policy's time is over. What the
// client sent and the server did not read is lost with the server.
//
// A socket costs three goroutines, and two buffers of 4 KiB if its connections use TLS. A
// pair of package relay costs neither.
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

// ErrClosed reports that the Proxy is not running (yet, or any more).
var ErrClosed = errors.New("the proxy of kept sockets is not running")

const (
	// lastReadTime is how long the connection to a leaving server is still read.
	lastReadTime = 250 * time.Millisecond

	// suspendReadTime is the same for a session that is being suspended, if its container is not
	// seen dead before. Its server runs until the checkpoint begins.
	suspendReadTime = 10 * time.Second

	// deadReadTime is how long a dead server is still read: it has sent everything before.
	deadReadTime = 20 * time.Millisecond

	// renewTime is how long another gateway has to end a connection that it does not serve.
	renewTime = 2 * time.Second

	// writeWait is how long a client may take to accept a frame of the gateway.
	writeWait = 10 * time.Second
)

// Server is a connection to a session's server that has agreed to the upgrade.
type Server struct {
	Conn  net.Conn
	Ahead []byte // already read from Conn; delivered first
	// Left is closed when the session leaves; nil for never.
	Left <-chan struct{}
	// Renew is called after Left was closed, if the other gateway keeps the connection while
	// the session is suspended. It waits until the session is served again, and returns its
	// Left. ok is false if the other gateway does not serve it. The end of ctx ends the wait.
	// nil: the connection ends when the session leaves.
	Renew func(ctx context.Context) (left <-chan struct{}, ok bool)
	// Far means that Conn leads to another gateway, which marks an end that the
	// server makes itself (see Spec.PeerForward). Without the mark, the end means
	// that the session left.
	Far bool
	// Release is called once when Conn is closed. May be nil.
	Release func()
	// Activity is told of the data of the socket. While the session sleeps, the socket
	// answers the client's Pings. nil: the session does not sleep.
	Activity holdfast.Activity
}

// Outcome is what happened to a socket that lost its server.
type Outcome string

// The outcomes.
const (
	Kept   Outcome = "kept"   // it has a new server
	Late   Outcome = "late"   // no next server in time, or it refused the upgrade
	Broken Outcome = "broken" // the server went in the middle of a long frame or of a message
	Client Outcome = "client" // the client left meanwhile
	Ended  Outcome = "ended"  // the gateway stopped meanwhile
)

// passed is the result of a search that ends because the socket is exported.
const passed Outcome = ""

// Outcomes returns all outcomes.
func Outcomes() []Outcome { return []Outcome{Kept, Late, Broken, Client, Ended} }

// Spec is a socket to keep.
type Spec struct {
	Client net.Conn
	Early  []byte // already read from Client; delivered first
	Server Server // without a Conn, the socket begins with the search for a server
	Policy holdfast.KeepSockets

	// Export is called by Proxy.Export, if Client is a plain TCP connection. It takes the
	// connections over, and Done is called after it. nil: the socket is served to its end.
	Export func(Exported)
	// Before is the state of an exported socket; nil for a new one.
	Before *State

	// Next sends the upgrade request to the session's next server. It is called
	// from one goroutine at a time; the end of ctx cancels it. hurry is closed when the client
	// has sent data for that server.
	Next func(ctx context.Context, hurry <-chan struct{}) (Server, error)

	// Awake is called before Next, if the session may be suspended while the socket is open.
	// It returns a channel that is closed when the session is not suspended. The socket calls
	// Next then, or when the client has sent data, and before that end. nil: the socket looks
	// for the next server at once.
	Awake func() (awake <-chan struct{}, end func())

	// PeerForward means that Client is another gateway, which keeps the client's
	// own connection. When the session leaves the node, the connection ends. If the session is
	// suspended and Awake is set, it ends only if Next returns an error. Without Awake, Next
	// and Policy are not used. When the server ends the connection itself, a mark that no
	// server may send (RFC 6455, 5.2) precedes the end.
	PeerForward bool

	// Outcome is called once for each server that was lost, with the time that
	// the socket had no server. Done is called once when everything is closed.
	Outcome func(Outcome, time.Duration)
	Done    func()
}

// Proxy serves sockets. It does nothing before Open. Its methods may be called
// from any goroutine.
type Proxy struct {
	pool    buffers
	exports exports
	sockets tasks.Group // open from Open to Close
}

// Open serves until ctx is done, and then closes every socket (with 1012 if the
// socket is between two frames). From now on Add may be used.
func (p *Proxy) Open(ctx context.Context) error {
	p.exports.begin = make(chan struct{})
	if err := p.sockets.Open(ctx); err != nil {
		return fmt.Errorf("proxy of kept sockets: %w", err)
	}
	return nil
}

// Close refuses further sockets. It returns when all sockets are closed and all
// Done calls have returned. The context of Open has ended before.
func (p *Proxy) Close() { p.sockets.Close() }

// Add takes both connections over; the caller must not use them any more,
// whatever Add returns. On an error both are closed, and neither Release nor
// Done is called.
func (p *Proxy) Add(s Spec) error {
	exportable := s.exportable()
	serve := func(ctx context.Context) {
		k := newSocket(s, &p.pool, ctx)
		if exportable {
			defer p.exports.sockets.Done()
			k.exporting = p.exports.begin
		}
		k.run()
	}
	if !exportable || p.exports.enter() {
		if p.sockets.Go(serve) {
			return nil
		}
		if exportable {
			p.exports.sockets.Done()
		}
	}
	s.Client.Close()
	if s.Server.Conn != nil {
		s.Server.Conn.Close()
	}
	return fmt.Errorf("keep a socket: %w", ErrClosed)
}
