// Package relay moves bytes between the two connections of an upgraded request
// (mostly a WebSocket) until both directions have ended.
//
// A few epoll loops, which share one buffer each, serve the pairs of plain TCP
// sockets. An idle pair therefore costs no goroutine and no buffer. If one side
// is not a plain socket (TLS), two goroutines copy. Both kinds guarantee the
// same:
//
//   - Bytes arrive in order and complete.
//   - A slow reader holds its writer back.
//   - A half close is passed on. The client's end of a WebSocket is not a half
//     close: the client has gone, and its server has closing.GoneWait to end. The
//     same applies when the client's kernel resets the connection.
//   - When the session leaves, a WebSocket that is between two frames gets a
//     Close frame with code 1012.
package relay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"holdfast"
)

// ErrClosed reports that the relay is not running (yet, or any more).
var ErrClosed = errors.New("relay is not running")

// bufferSize is the maximum of one read in bytes, and of the bytes that a pair
// buffers per direction for a slow reader.
const bufferSize = 64 << 10

// Spec is a pair of connections to relay between.
type Spec struct {
	Client, Upstream net.Conn

	// ToUpstream and ToClient are bytes that were already read from the other
	// side; they are delivered first.
	ToUpstream, ToClient []byte

	// WebSocket means that both sides speak RFC 6455 from the first byte of
	// ToClient on; 1012 is sent only then.
	WebSocket bool

	// Left is closed when the session leaves. nil for never.
	Left <-chan struct{}

	// Activity is told of the data, and Reason is its reason to wake the session. While
	// the session sleeps, the relay answers the Pings of a WebSocket's client. nil: the
	// session does not sleep.
	Activity holdfast.Activity
	Reason   holdfast.WakeReason

	// Export is called by Relay.Export, from a goroutine of its own. It takes the sockets of
	// a pair of plain TCP sockets over, which stay open, and Done is called after it. nil: the
	// pair is served to its end.
	Export func(Exported)

	// Done is called once, from a goroutine of its own, when both
	// connections are closed.
	Done func()

	before *State // of an exported pair
}

// pair is the common interface of both kinds of relaying.
type pair interface {
	// leave starts the end of the pair: the last bytes, then close. It does not
	// block, is idempotent, and may be called from any goroutine.
	leave()
}

// Relay serves pairs. Its methods may be called from any goroutine.
type Relay struct {
	loops []*loop
	left  leaveWatch

	buffers sync.Pool // for pairs served by goroutines

	mu      sync.Mutex
	running bool
	next    int            // index of the loop for the next pair
	copies  map[pair]bool  // pairs served by goroutines
	ends    sync.WaitGroup // running Done calls, copies and watchers
}

// New returns a relay with n loops, at least 1. It does nothing before Open.
func New(n int) *Relay {
	r := &Relay{copies: map[pair]bool{}}
	r.left.ends = &r.ends
	r.buffers.New = func() any { return new([bufferSize]byte) }
	for range max(1, n) {
		r.loops = append(r.loops, &loop{ended: r.end})
	}
	return r
}

// Open creates the descriptors of the loops. From now on Add may be used. Run has to
// be called after it.
func (r *Relay) Open() error {
	for i, l := range r.loops {
		if err := l.open(); err != nil {
			for _, o := range r.loops[:i] {
				o.close()
			}
			return fmt.Errorf("relay: %w", err)
		}
	}
	r.setRunning(true)
	return nil
}

// Run serves until ctx is done, then ends every pair (WebSockets with 1012). It
// returns when all are closed and all Done calls have returned.
func (r *Relay) Run(ctx context.Context) error {
	loops, ctx := errgroup.WithContext(ctx)
	for _, l := range r.loops {
		loops.Go(l.run)
	}
	<-ctx.Done() // a loop ends by itself only when epoll fails
	for _, p := range r.setRunning(false) {
		p.leave()
	}
	for _, l := range r.loops {
		l.stop()
	}
	err := loops.Wait()
	r.ends.Wait()
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	return nil
}

// setRunning enables or disables Add and returns the pairs served by
// goroutines.
func (r *Relay) setRunning(on bool) []pair {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = on
	return slices.Collect(maps.Keys(r.copies))
}

// Add takes both connections over; the caller must not use them any more,
// whatever Add returns. On an error both are closed, and Done is not called.
func (r *Relay) Add(s Spec) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.running {
		s.Client.Close()
		s.Upstream.Close()
		return ErrClosed
	}
	client, plain := s.Client.(*net.TCPConn)
	upstream, both := s.Upstream.(*net.TCPConn)
	if !plain || !both {
		r.addCopyLocked(s)
		return nil
	}
	l := r.loops[r.next%len(r.loops)]
	r.next++
	p, err := newSocketPair(l, client, upstream, s)
	if err != nil {
		return err
	}
	r.ends.Add(1)
	r.left.add(s.Left, p)
	if !l.post(command{pair: p}) { // its epoll failed
		r.left.remove(s.Left, p)
		p.closeSockets()
		r.ends.Done()
		return ErrClosed
	}
	return nil
}

func (r *Relay) addCopyLocked(s Spec) {
	p := newCopyPair(s, &r.buffers)
	r.copies[p] = true
	r.ends.Add(1)
	r.left.add(s.Left, p)
	go func() {
		p.run()
		r.mu.Lock()
		delete(r.copies, p)
		r.mu.Unlock()
		r.end(p, s)
	}()
}

// end is called for every added pair when it is closed.
func (r *Relay) end(p pair, s Spec) {
	go func() {
		defer r.ends.Done()
		r.left.remove(s.Left, p)
		if s.Done != nil {
			s.Done()
		}
	}()
}

// leaveWatch tells pairs that their session leaves. It uses one goroutine per
// session that has pairs, not one per pair.
type leaveWatch struct {
	ends *sync.WaitGroup // counts the goroutines

	mu     sync.Mutex
	groups map[<-chan struct{}]*leaveGroup
}

type leaveGroup struct {
	pairs map[pair]struct{}
	empty chan struct{} // closed when the last pair has gone
}

func (w *leaveWatch) add(left <-chan struct{}, p pair) {
	if left == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.groups[left]
	if g == nil {
		g = &leaveGroup{pairs: map[pair]struct{}{}, empty: make(chan struct{})}
		if w.groups == nil {
			w.groups = map[<-chan struct{}]*leaveGroup{}
		}
		w.groups[left] = g
		w.ends.Add(1)
		go w.watch(left, g)
	}
	g.pairs[p] = struct{}{}
}

func (w *leaveWatch) remove(left <-chan struct{}, p pair) {
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.groups[left]
	if g == nil {
		return
	}
	delete(g.pairs, p)
	if len(g.pairs) == 0 {
		delete(w.groups, left)
		close(g.empty)
	}
}

func (w *leaveWatch) watch(left <-chan struct{}, g *leaveGroup) {
	defer w.ends.Done()
	select {
	case <-g.empty:
		return
	case <-left:
	}
	w.mu.Lock()
	if w.groups[left] == g {
		delete(w.groups, left)
	}
	pairs := g.pairs
	g.pairs = nil
	w.mu.Unlock()
	for p := range pairs {
		p.leave()
	}
}
