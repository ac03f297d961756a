package relay

import (
	"errors"
	"fmt"
	"net"
	"unsafe"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/connfd"
	"holdfast/internal/sessions/gateway/closing"
)

// socketPair is a pair of plain sockets, served by a loop. Only post and leave
// may be called from other goroutines.
type socketPair struct {
	loop     *loop
	spec     Spec // without its connections
	client   side
	upstream side
	frames   frames // of the bytes sent to the client, including pending ones
	asked    frames // of the bytes that the client sent; only with an Activity
	started  bool
	awaiting bool // the server has gone; wait for Left
	waited   bool // closing.LeftWait is over
	leaving  bool // beginClose was called
	gone     bool // the client has gone and closing.GoneWait is running
	closed   bool
}

// side is one socket of a pair and the direction that reads from it.
type side struct {
	pair *socketPair
	peer *side
	fd   int
	slot int32
	gen  int32 // 0: not registered

	readable bool // the kernel may have bytes or EOF
	hup      bool // EOF follows: a short read does not mean an empty socket
	writable bool // the kernel may accept bytes
	queued   bool
	eof      bool // nothing more will be read
	discard  bool // bytes that are read are discarded
	done     bool // all bytes are delivered, and EOF is passed on to the peer

	pending []byte // read, but not yet accepted by the peer
	sent    int    // bytes of pending that the peer accepted
}

// newSocketPair moves both sockets out of the runtime's poller: it takes a
// duplicate of each descriptor and closes the connection.
func newSocketPair(l *loop, client, upstream *net.TCPConn, s Spec) (*socketPair, error) {
	p := &socketPair{loop: l, spec: s}
	p.spec.Client, p.spec.Upstream = nil, nil
	cfd, cerr := connfd.Take(client)
	ufd, uerr := connfd.Take(upstream)
	p.client = side{pair: p, peer: &p.upstream, fd: cfd, pending: s.ToUpstream}
	p.upstream = side{pair: p, peer: &p.client, fd: ufd, pending: s.ToClient}
	p.spec.ToUpstream, p.spec.ToClient = nil, nil
	if err := errors.Join(cerr, uerr); err != nil {
		p.closeSockets()
		return nil, fmt.Errorf("relay: %w", err)
	}
	return p, nil
}

func (p *socketPair) closeSockets() {
	for _, s := range []*side{&p.client, &p.upstream} {
		if s.fd >= 0 {
			unix.Close(s.fd)
			s.fd = -1
		}
	}
}

func (p *socketPair) leave() { p.loop.post(command{pair: p, end: true}) }

// start begins to serve the pair.
func (p *socketPair) start() {
	p.started = true
	p.loop.pairs[p] = struct{}{}
	switch before := p.spec.before; {
	case before != nil:
		p.frames, p.asked = before.Answered.frames(), before.Asked.frames()
		p.spec.before = nil
	case p.spec.WebSocket:
		p.frames.feed(p.upstream.pending)
		p.asked.feed(p.client.pending)
	}
	for _, s := range []*side{&p.client, &p.upstream} {
		s.readable, s.writable = true, true
		if err := p.loop.register(s); err != nil {
			p.close()
			return
		}
		p.loop.enqueue(s)
	}
	if p.loop.leaves || p.leaving {
		p.leaving = false
		p.beginClose()
	}
}

// close ends the pair.
func (p *socketPair) close() {
	if p.closed {
		return
	}
	p.closed = true
	l := p.loop
	for _, s := range []*side{&p.client, &p.upstream} {
		l.unregister(s)
		s.drop()
	}
	p.closeSockets() // also removes them from epoll
	delete(l.pairs, p)
	delete(l.timed, p)
	l.ended(p, p.spec)
}

// beginClose sends the remaining bytes, then 1012 if the stream is between two
// frames, and gives the client closing.Timeout to hang up.
func (p *socketPair) beginClose() {
	if !p.started {
		p.leaving = true // start calls beginClose again
		return
	}
	if p.closed || p.leaving {
		return
	}
	up := &p.upstream
	if !up.eof {
		up.readable = true
		up.pump() // the server's last bytes, a bounded number
		if p.closed {
			return
		}
	}
	p.leaving, p.awaiting = true, false
	if p.spec.WebSocket && p.frames.between() && !p.frames.sawClose && !up.done {
		up.pending = append(up.pending, closeRestart()...)
	}
	if p.client.discard { // the server had ended; read the client until its EOF
		p.client.done, p.client.eof = false, false
	}
	p.client.discard = true
	p.client.drop()
	up.readable, up.eof = false, true
	p.loop.after(p, closing.Timeout)
	up.pump()
	if !p.closed {
		p.client.readable = true
		p.client.pump()
	}
}

// timeUp is called when the duration given to after has passed.
func (p *socketPair) timeUp() {
	if p.leaving || p.gone {
		p.close()
		return
	}
	p.awaiting, p.waited = false, true
	p.upstream.pump()
}

// clientGone limits the time of the server once the client has gone.
func (p *socketPair) clientGone() {
	if p.gone || p.leaving || p.closed {
		return
	}
	waits := p.awaiting
	p.gone, p.awaiting = true, false
	p.loop.after(p, closing.GoneWait)
	if waits { // for a signal that only matters to the client
		p.upstream.pump()
	}
}

// event handles the epoll events of the side's socket.
func (s *side) event(ev uint32) {
	if ev&(unix.EPOLLERR|unix.EPOLLHUP|unix.EPOLLRDHUP) != 0 {
		s.hup = true
		s.readable = true
	}
	if ev&unix.EPOLLIN != 0 {
		s.readable = true
	}
	if ev&(unix.EPOLLOUT|unix.EPOLLERR|unix.EPOLLHUP) != 0 && !s.writable {
		s.writable = true
		s.peer.pump()
	}
	if s.readable && !s.pair.closed {
		s.pump()
	}
	// Both directions of the client's socket have ended. Its earlier bytes may
	// still wait for a slow server; the bytes of the server are discarded.
	if p := s.pair; s == &p.client && ev&(unix.EPOLLERR|unix.EPOLLHUP) != 0 && !p.closed && !p.leaving {
		p.clientGone()
		p.upstream.drop()
		p.upstream.cut()
		p.upstream.pump()
	}
}

// pump moves bytes from s to its peer until one of them would block.
func (s *side) pump() {
	l := s.pair.loop
	for turn := 0; !s.done; turn++ {
		if len(s.pending) > 0 && !s.flush() {
			return
		}
		if s.eof {
			s.finish()
			return
		}
		if !s.readable {
			return
		}
		if turn == turns {
			l.enqueue(s)
			return
		}
		n, errno := recv(s.fd, l.buf)
		switch {
		case errno == unix.EINTR:
		case errno == unix.EAGAIN:
			s.readable = false
		case errno != 0 || n == 0: // a reset ends the stream like EOF
			s.readable, s.eof = false, true
		default:
			// A short read has emptied the socket (epoll(7), Q9).
			s.readable = n == len(l.buf) || s.hup
			s.deliver(l.buf[:n])
		}
	}
}

// deliver writes b to the peer and buffers what the peer does not accept.
func (s *side) deliver(b []byte) {
	if s.discard || s.pair.spec.Activity != nil && s.report(b) {
		return
	}
	if p := s.pair; p.spec.WebSocket && s == &p.upstream {
		p.frames.feed(b)
	}
	n, ok := s.peer.write(b)
	if !ok {
		s.cut()
	} else if n < len(b) {
		s.pending = s.pair.loop.hold(b[n:])
	}
}

// report tells the session's Activity of bytes that s has read. It returns true if they are
// Pings for a session that sleeps, which are then answered.
func (s *side) report(b []byte) bool {
	p := s.pair
	read := &p.frames // deliver feeds it
	if s == &p.client {
		read = &p.asked
	}
	pongs, controls := []byte(nil), false
	if p.spec.WebSocket {
		pongs, controls = read.controls(b)
	}
	switch {
	case !controls:
		p.spec.Activity.Data(p.spec.Reason)
	case p.spec.Activity.Control():
	case s == &p.upstream:
		p.spec.Activity.Data(p.spec.Reason) // the last bytes before the sleep
	case p.frames.between() && len(p.upstream.pending) == 0 && !p.frames.sawClose:
		if n, ok := s.write(pongs); ok && n < len(pongs) {
			p.upstream.pending = p.loop.hold(pongs[n:])
		}
		return true
	default: // no frame may be sent to the client now
		p.spec.Activity.Data(p.spec.Reason)
	}
	if s == &p.client && p.spec.WebSocket {
		p.asked.feed(b)
	}
	return false
}

// flush writes pending bytes. It returns false while some are left.
func (s *side) flush() bool {
	n, ok := s.peer.write(s.pending[s.sent:])
	if s.sent += n; ok && s.sent < len(s.pending) {
		return false
	}
	s.drop()
	if !ok {
		s.cut()
	}
	return true
}

// write writes b to the socket and returns how many bytes it accepted. ok is
// false if it will never accept more.
func (s *side) write(b []byte) (sent int, ok bool) {
	for s.writable && sent < len(b) {
		n, errno := send(s.fd, b[sent:])
		switch errno {
		case 0:
			sent += n
		case unix.EINTR:
		case unix.EAGAIN:
			s.writable = false
		default:
			return sent, false
		}
	}
	return sent, true
}

// drop discards the bytes that the peer has not accepted.
func (s *side) drop() {
	s.pair.loop.unhold(s.pending)
	s.pending, s.sent = nil, 0
}

// cut ends the direction that reads from s, because its peer accepts nothing
// more. The other direction continues, since earlier bytes of the peer may
// still be unread; epoll reports the EOF of the peer.
func (s *side) cut() {
	s.readable, s.eof, s.discard = false, true, true
	if p := s.pair; s == &p.upstream {
		p.clientGone()
	}
}

// finish passes EOF on to the peer, and closes the pair when both directions
// have finished.
func (s *side) finish() {
	p := s.pair
	if s == &p.upstream && p.awaitsLeft() {
		if !p.awaiting {
			p.awaiting = true
			p.loop.after(p, closing.LeftWait)
		}
		return
	}
	s.done = true
	_ = unix.Shutdown(s.peer.fd, unix.SHUT_WR) // fails if the peer has already gone
	if s.peer.done {
		p.close()
	} else if s == &p.client && p.spec.WebSocket && !s.discard {
		p.clientGone()
	}
}

// awaitsLeft reports whether the end of the server calls for a Close frame if
// the session has left: the client is still there, and neither side has sent a
// Close frame.
func (p *socketPair) awaitsLeft() bool {
	clientEnded := p.client.done && !p.client.discard
	return p.spec.WebSocket && !p.leaving && !p.waited && !p.gone && !clientEnded &&
		!p.upstream.discard && p.frames.between() && !p.frames.sawClose
}

// recv and send are the two system calls of every relayed byte. They never
// block, so they bypass the Go scheduler.
func recv(fd int, b []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0, 0, 0)
	return int(n), errno
}

func send(fd int, b []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_NOSIGNAL, 0, 0)
	return int(n), errno
}
