package reattach

import (
	"bytes"
	"context"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/gateway/closing"
	"holdfast/internal/sessions/gateway/frame"
)

// socket is a client's connection and the connections to its servers, one after
// another.
type socket struct {
	spec Spec
	pool *buffers
	stop context.Context
	up   *up

	exporting <-chan struct{} // closed when the socket is to be exported; nil: it cannot be
	unsent    []byte          // bytes that were passed on to the client, and that it has not accepted

	// State of the direction to the client, used by the goroutine of run only:
	inside    bool // a message has begun and its last frame was not sent yet
	closeSent bool // a Close frame was sent

	// down is held while a frame is sent to a client whose session can sleep. The direction
	// from the client then answers Pings between two frames.
	down sync.Mutex
	mid  bool // a part of a long frame was sent
}

// verdict is the reaction when a server sends nothing more.
type verdict int

const (
	lost         verdict = iota // look for the next server
	withoutClose                // end the client's connection without a Close frame
	withClose                   // end it with a Close frame
	withMark                    // end it with the mark that the server ended it itself
	exported                    // another Proxy continues it
)

func newSocket(s Spec, pool *buffers, stop context.Context) *socket {
	k := &socket{spec: s, pool: pool, stop: stop}
	k.up = newUp(s.Client, s.Early, s.Policy.Buffer, pool, k.pong)
	if b := s.Before; b != nil {
		k.unsent, k.inside, k.closeSent = b.ToClient, b.Inside, b.CloseSent
		k.up.restore(b)
	}
	return k
}

// run serves the socket to its end.
func (s *socket) run() {
	server, end := s.spec.Server, lost
	if server.Conn != nil {
		if s.spec.Before != nil && closing.Closed(server.Left) {
			server.Conn.SetWriteDeadline(past) // what the client sends is for the next server
		}
		s.up.attach(server.Conn, server.Activity) // before a part of a long frame is read
	}
	go s.up.run()
	for {
		if server.Conn != nil {
			end = s.serve(server)
		}
		if end == lost {
			server, end = s.handover()
		}
		if end != lost {
			break
		}
		s.up.attach(server.Conn, server.Activity)
	}
	if end == exported {
		s.spec.Done()
		return
	}
	s.up.end()
	s.writeLastFrame(end)
	closing.Write(s.spec.Client)
	s.spec.Client.SetReadDeadline(time.Now().Add(closing.Timeout))
	s.up.wait()
	s.spec.Client.Close()
	s.spec.Done()
}

// writeLastFrame sends the client the last frame, if there is one.
func (s *socket) writeLastFrame(end verdict) {
	var b []byte
	switch {
	case end == withClose && !s.closeSent:
		b = frame.Closing(closing.Restart)
		if _, bye := s.up.takeControl(); bye != nil {
			f, _ := frame.Parse(bye)
			b = frame.CloseAnswer(f.Payload(bye))
		}
	case end == withMark:
		b = frame.Server(frame.End, nil)
	default:
		return
	}
	s.spec.Client.SetWriteDeadline(time.Now().Add(closing.Timeout))
	_, _ = s.spec.Client.Write(b) // fails if the client has gone
}

// serve relays between the client and the attached server until the server sends nothing
// more, the client accepts nothing more, or the socket is exported. Unless it is exported
// with the server, serve closes the connection to the server.
func (s *socket) serve(server Server) verdict {
	served := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() { s.watch(server, served) })

	in := newReader(server.Conn, server.Ahead, s.pool)
	if b := s.spec.Before; b != nil {
		in.ahead, in.rest, s.spec.Before = b.FromServer, b.FromServerRest, nil
	}
	why := s.pass(in, server)
	torn := in.midFrame()
	var rest []byte
	exports := why == interrupted && s.exportsServer(server)
	if exports {
		rest = in.leftover()
	}
	in.release()
	close(served)
	watch.Wait()
	if exports {
		s.export(server, rest, in.rest)
		return exported
	}
	defer server.end()
	server.Conn.SetWriteDeadline(past)
	s.up.detach()
	return s.judge(server, why, torn)
}

func (s Server) end() {
	s.Conn.Close()
	if s.Release != nil {
		s.Release()
	}
}

// watch limits how long a server may still send after its session has left,
// after the client has gone, or after the Proxy stops.
func (s *socket) watch(server Server, served <-chan struct{}) {
	ctx, cancel := context.WithCancel(s.stop)
	defer cancel()
	left, gone, renewed := server.Left, s.up.gone, false
	for {
		select {
		case <-left:
			if server.Renew != nil && !renewed {
				left, renewed = server.renew(ctx), true
				continue
			}
		case <-s.stop.Done():
			s.spec.Client.SetWriteDeadline(time.Now().Add(closing.Timeout))
		case <-gone:
			gone = nil
			bound := time.Now().Add(closing.GoneWait)
			server.Conn.SetDeadline(bound)
			s.spec.Client.SetWriteDeadline(bound)
			continue
		case <-s.exporting:
			s.interrupt(server)
			return
		case <-served:
			return
		}
		if s.spec.PeerForward && s.spec.Awake == nil {
			server.Conn.SetDeadline(time.Now().Add(lastReadTime))
			return
		}
		server.Conn.SetWriteDeadline(past) // the rest goes to the next server
		server.Conn.SetReadDeadline(time.Now().Add(s.readTime(ctx, server.Activity, served)))
		select {
		case <-s.exporting:
			s.interrupt(server)
		case <-served:
		}
		return
	}
}

// readTime returns how long a server may still send after its session has left. If the session is
// being suspended, it waits for the server's death before.
func (s *socket) readTime(ctx context.Context, session holdfast.Activity, served <-chan struct{}) time.Duration {
	if session == nil {
		return lastReadTime
	}
	dead := session.Suspending()
	if dead == nil {
		return lastReadTime
	}
	late := time.NewTimer(suspendReadTime)
	defer late.Stop()
	select {
	case <-dead:
	case <-late.C:
	case <-served:
	case <-s.exporting:
	case <-ctx.Done():
	}
	return deadReadTime
}

// renew returns a channel that is closed when the other gateway had time to end the connection,
// because it does not serve the session any more, or when ctx is done.
func (s Server) renew(ctx context.Context) <-chan struct{} {
	over := make(chan struct{})
	go func() { // ends with ctx
		defer close(over)
		for {
			left, ok := s.Renew(ctx)
			if !ok {
				_ = tasks.Sleep(ctx, renewTime) // ctx has ended
				return
			}
			select {
			case <-left:
			case <-ctx.Done():
				return
			}
		}
	}()
	return over
}

// reason is why pass returned.
type reason int

const (
	silent      reason = iota // the server sends nothing more
	unread                    // the client accepts nothing more
	marked                    // another gateway marked that the server ended the connection itself
	interrupted               // the socket is to be exported
)

// pass passes the server's frames on until the server sends nothing more, the
// client accepts nothing more, or the socket is to be exported.
func (s *socket) pass(in *reader, server Server) reason {
	if b := s.unsent; len(b) > 0 {
		s.unsent = nil
		if err := s.write(b, in); err != nil {
			return s.reasonOf(err, unread)
		}
	}
	for {
		p, err := in.next()
		if err != nil {
			return s.reasonOf(err, silent)
		}
		end := false
		b := p.b
		if p.head {
			b, end = s.follow(p, server.Far)
		}
		report(server.Activity, p)
		if err := s.write(b, in); err != nil {
			return s.reasonOf(err, unread)
		}
		if end {
			return marked
		}
	}
}

// write writes frames of the server, or parts of a long one, to the client.
func (s *socket) write(b []byte, in *reader) error {
	s.down.Lock()
	defer s.down.Unlock()
	n, err := s.spec.Client.Write(b)
	s.mid = in.midFrame()
	if s.interrupted(err) {
		s.unsent = bytes.Clone(b[n:])
	}
	return err
}

// reasonOf returns why pass returns with err; otherwise applies unless the socket is to be
// exported.
func (s *socket) reasonOf(err error, otherwise reason) reason {
	if s.interrupted(err) {
		return interrupted
	}
	return otherwise
}

// report tells the session of a piece of its server.
func report(a holdfast.Activity, p piece) {
	if a == nil {
		return
	}
	if _, controls := frame.Controls(p.b); p.long || !controls || !a.Control() {
		a.Data(holdfast.WokenByWebSocket)
	}
}

// pong sends the client Pongs of the gateway. It returns false in the middle of a long
// frame. The client's goroutine calls it.
func (s *socket) pong(pongs []byte) bool {
	s.down.Lock()
	defer s.down.Unlock()
	if s.mid {
		return false
	}
	_, _ = s.spec.Client.Write(pongs) // fails if the client has gone
	return true
}

// follow records the frames of a piece. It returns the part for the client, and
// whether the mark of the server's end comes next.
func (s *socket) follow(p piece, far bool) (b []byte, end bool) {
	if p.long {
		f, _ := frame.Parse(p.b)
		s.note(f)
		return p.b, false
	}
	n := 0
	frame.Each(p.b, func(f frame.Header, all []byte) {
		end = end || far && f.Op() == frame.End
		if !end {
			n += len(all)
			s.note(f)
		}
	})
	return p.b[:n], end
}

func (s *socket) note(f frame.Header) {
	switch {
	case f.Op() == frame.Close:
		s.closeSent = true
	case !f.Control():
		s.inside = !f.Last()
	}
}

// judge returns how to continue when a server sends nothing more. torn means
// that it stopped in the middle of a long frame.
func (s *socket) judge(server Server, why reason, torn bool) verdict {
	unfinished, closes := s.up.look()
	switch {
	case why == unread, s.closeSent, closing.Closed(s.up.gone):
		return withoutClose
	case s.spec.PeerForward && s.spec.Awake != nil && !torn && !s.inside && !unfinished && !closes && s.stop.Err() == nil && s.leaves(server):
		return lost
	case s.spec.PeerForward && (torn || s.leaves(server)):
		return withoutClose
	case s.spec.PeerForward:
		return withMark
	case why == marked, !server.Far && !s.leaves(server):
		return withoutClose // the server ended the connection itself
	case torn:
		s.spec.Outcome(Broken, 0)
		return withoutClose // no frame can be sent in the middle of another
	case s.inside, unfinished:
		s.spec.Outcome(Broken, 0)
		return withClose
	case closes, s.stop.Err() != nil:
		return withClose
	}
	return lost
}

// leaves waits for the signal that the session leaves, or that the Proxy stops.
func (s *socket) leaves(server Server) bool {
	return closing.AwaitLeft(s.stop, server.Left) || s.stop.Err() != nil
}

// handover keeps the client connected while its session has no server. It
// returns the next server with the verdict lost, or the verdict that ends the
// connection.
func (s *socket) handover() (Server, verdict) {
	if len(s.unsent) > 0 && !s.isExporting() {
		b := s.unsent
		if s.unsent = nil; !s.writeFrame(b) {
			return Server{}, withoutClose
		}
	}
	next, out := s.await()
	if out == passed {
		s.up.interrupt()
		s.export(Server{}, nil, 0)
		return Server{}, exported
	}
	if out == Kept && !s.notifyResumed() {
		next.server.end()
		out = Client
	}
	if !s.spec.PeerForward { // the other gateway reports it
		s.spec.Outcome(out, time.Since(next.begun))
	}
	switch {
	case out == Kept:
		return next.server, lost
	case out == Client, s.spec.PeerForward:
		return Server{}, withoutClose
	}
	return Server{}, withClose
}

// await answers the client until the next server is connected.
func (s *socket) await() (found, Outcome) {
	ctx, cancel := context.WithCancel(s.stop)
	defer cancel()
	search := s.newSearch(ctx)
	defer search.end()
	data, ended, out := s.up.data, ctx.Done(), Kept
	for out == Kept {
		select {
		case f := <-search.done:
			switch {
			case f.err == nil:
				return f, Kept
			case s.stop.Err() != nil:
				return f, Ended
			}
			return f, Late
		case <-search.awake:
			search.begin()
		case <-data:
			data = nil
			close(search.hurry)
			search.begin()
		case <-s.up.pinged:
			if !s.answer() {
				out = Client
			}
		case <-s.up.gone:
			out = Client
		case <-s.exporting:
			out = passed
		case <-ended:
			if search.awake != nil {
				return found{begun: search.begun}, Ended
			}
			ended = nil // the result of the search comes
		}
	}
	cancel()
	if search.awake == nil {
		if f := <-search.done; f.err == nil {
			if out == passed {
				return f, Kept
			}
			f.server.end()
		}
	}
	return found{begun: search.begun}, out
}

// answer answers the client's last Ping. It returns false if the client has
// sent a Close frame, which it answers, or accepts nothing.
func (s *socket) answer() bool {
	ping, bye := s.up.takeControl()
	if f, ok := frame.Parse(bye); ok {
		s.writeFrame(frame.CloseAnswer(f.Payload(bye)))
		s.closeSent = true
		return false
	}
	f, ok := frame.Parse(ping)
	return !ok || s.writeFrame(frame.Server(frame.Pong, f.Payload(ping)))
}

// notifyResumed informs the client, if the policy says so, that there is a server again.
func (s *socket) notifyResumed() bool {
	p := s.spec.Policy
	switch {
	case p.Tell == "":
		return true
	case p.Ping:
		return s.writeFrame(frame.Server(frame.Ping, []byte(p.Tell)))
	}
	return s.writeFrame(frame.Server(frame.Text, []byte(p.Tell)))
}

// writeFrame sends the client a frame of the gateway.
func (s *socket) writeFrame(b []byte) bool {
	s.spec.Client.SetWriteDeadline(time.Now().Add(writeWait))
	_, err := s.spec.Client.Write(b)
	s.spec.Client.SetWriteDeadline(time.Time{})
	return err == nil
}
