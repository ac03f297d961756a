package reattach

import (
	"context"
	"net"
	"sync"
	"time"
)

// socket is a client's connection, and that to one server after the other.
type socket struct {
	spec Spec
	pool *buffers
	stop context.Context
	up   *up

	// Of the direction to the client, which belongs to run's goroutine:
	inside bool // a message was begun and its last frame is still to come
	said   bool // a Close frame was sent
}

// verdict is what is to be done when a server says no more.
type verdict int

const (
	lost         verdict = iota // look for the next one
	withoutClose                // end the client's connection, too
	withClose                   // with a Close frame
	withMark                    // with the mark of a server's own end
)

func newSocket(s Spec, pool *buffers, stop context.Context) *socket {
	return &socket{spec: s, pool: pool, stop: stop, up: newUp(s.Client, s.Early, s.Policy.Buffer, pool)}
}

// run serves the socket to its end.
func (s *socket) run() {
	var up sync.WaitGroup
	up.Go(s.up.run)
	server, end := s.spec.Server, lost
	for {
		end = s.serve(server)
		if end == lost {
			server, end = s.handover()
		}
		if end != lost {
			break
		}
	}
	s.up.end()
	s.sayLast(end)
	closeWrite(s.spec.Client)
	s.spec.Client.SetReadDeadline(time.Now().Add(linger))
	up.Wait()
	s.up.flushes.Wait()
	s.spec.Client.Close()
	if s.spec.Done != nil {
		s.spec.Done()
	}
}

// sayLast says what there is to say to the client at the end.
func (s *socket) sayLast(end verdict) {
	var b []byte
	switch {
	case end == withClose && !s.said:
		b = closeFrame(restart)
	case end == withMark:
		b = serverFrame(opEnd, nil)
	default:
		return
	}
	s.spec.Client.SetWriteDeadline(time.Now().Add(linger))
	_, _ = s.spec.Client.Write(b) // fails where the client has gone
}

// serve relays between the client and the server until the server says no more,
// or nobody wants it. The server's connection is closed then.
func (s *socket) serve(server Server) verdict {
	defer server.end()
	s.up.attach(server.Conn)
	served := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() { s.watch(server, served) })

	in := newReader(server.Conn, server.Ahead, s.pool)
	why := s.down(in, server.Far)
	torn := in.midFrame()
	in.release()
	close(served)
	watch.Wait()
	server.Conn.SetWriteDeadline(time.Unix(1, 0))
	s.up.detach()
	return s.judge(server, why, torn)
}

func (s Server) end() {
	s.Conn.Close()
	if s.Release != nil {
		s.Release()
	}
}

// watch bounds what the server may still say when it leaves, when the client has
// gone, or when the keeper stops.
func (s *socket) watch(server Server, served <-chan struct{}) {
	gone := s.up.gone
	for {
		select {
		case <-server.Left:
		case <-s.stop.Done():
			s.spec.Client.SetWriteDeadline(time.Now().Add(linger))
		case <-gone:
			gone = nil
			bound := time.Now().Add(goneWait)
			server.Conn.SetDeadline(bound)
			s.spec.Client.SetWriteDeadline(bound)
			continue
		case <-served:
			return
		}
		server.Conn.SetDeadline(time.Now().Add(lastReadTime))
		if !s.spec.PeerForward {
			server.Conn.SetWriteDeadline(time.Unix(1, 0)) // the rest is the next one's
		}
		return
	}
}

// reason is why down has returned.
type reason int

const (
	silent reason = iota // the server says no more
	unread               // the client takes no more
	marked               // the server has ended by itself, as another gateway says
)

// down passes on what the server says until one of them has had enough.
func (s *socket) down(in *reader, far bool) reason {
	for {
		p, err := in.next()
		if err != nil {
			return silent
		}
		end := false
		b := p.b
		if p.head {
			b, end = s.follow(p, far)
		}
		if _, err := s.spec.Client.Write(b); err != nil {
			return unread
		}
		if end {
			return marked
		}
	}
}

// follow notes the frames of a piece. It returns what of it is the client's, and
// whether the mark of the server's end follows.
func (s *socket) follow(p piece, far bool) (b []byte, end bool) {
	if p.long {
		f, _ := parse(p.b)
		s.note(f)
		return p.b, false
	}
	n := 0
	frames(p.b, func(f frame, all []byte) {
		end = end || far && f.op() == opEnd
		if !end {
			n += len(all)
			s.note(f)
		}
	})
	return p.b[:n], end
}

func (s *socket) note(f frame) {
	switch {
	case f.op() == opClose:
		s.said = true
	case !f.control():
		s.inside = !f.last()
	}
}

// judge decides how it goes on when a server has had its say. torn says that it
// went in the middle of a long frame.
func (s *socket) judge(server Server, why reason, torn bool) verdict {
	u := s.up.look()
	switch {
	case why == unread, s.said, closed(s.up.gone):
		return withoutClose
	case s.spec.PeerForward && (torn || s.leaves(server)):
		return withoutClose
	case s.spec.PeerForward:
		return withMark
	case why == marked, !server.Far && !s.leaves(server):
		return withoutClose // its own will
	case torn:
		s.tell(Torn, 0)
		return withoutClose // nothing can be said in the middle of a frame
	case s.inside, u.torn:
		s.tell(Torn, 0)
		return withClose
	case u.closing, s.stop.Err() != nil:
		return withClose
	}
	return lost
}

// leaves waits a moment for the news that the server's session leaves, or that
// everybody does.
func (s *socket) leaves(server Server) bool {
	t := time.NewTimer(leftWait)
	defer t.Stop()
	select {
	case <-server.Left:
		return true
	case <-s.stop.Done():
		return true
	case <-t.C:
		return false
	}
}

func (s *socket) tell(o Outcome, took time.Duration) {
	if s.spec.Outcome != nil {
		s.spec.Outcome(o, took)
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// closeWrite fails when the peer has gone already.
func closeWrite(c net.Conn) {
	if c, ok := c.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite()
	}
}
