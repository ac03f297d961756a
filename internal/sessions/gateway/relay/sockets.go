package relay

import (
	"errors"
	"fmt"
	"net"
	"unsafe"

	"golang.org/x/sys/unix"
)

// socketPair is a pair of plain sockets, served by a loop. Only post and leave
// may be called from other goroutines.
type socketPair struct {
	loop     *loop
	spec     Spec // without its connections
	client   side
	upstream side
	frames   frames // of what the client was sent, pending bytes included
	started  bool
	awaiting bool // the server has gone, and Left may tell why
	waited   bool // the time of an orphan is over
	leaving  bool // goodbye was called
	gone     bool // the client has, and the time that its server has is running
	closed   bool
}

// side is one socket of a pair, and the direction that reads from it.
type side struct {
	pair *socketPair
	peer *side
	fd   int
	slot int32
	gen  int32 // 0: not registered

	readable bool // the kernel may have bytes (or the end) for us
	hup      bool // the end is in sight: a short read does not mean empty
	writable bool // the kernel may take bytes
	queued   bool
	eof      bool // nothing will be read any more
	discard  bool // what is read is thrown away
	done     bool // all that was read is delivered, and the peer told of the end

	pending []byte // read, and not yet taken by the peer
	sent    int    // bytes of pending that the peer took
}

// newSocketPair moves both sockets out of the runtime's poller: it takes a
// duplicate of each descriptor and closes the connection.
func newSocketPair(l *loop, client, upstream *net.TCPConn, s Spec) (*socketPair, error) {
	p := &socketPair{loop: l, spec: s}
	p.spec.Client, p.spec.Upstream = nil, nil
	cfd, cerr := takeOver(client)
	ufd, uerr := takeOver(upstream)
	p.client = side{pair: p, peer: &p.upstream, fd: cfd, pending: s.ToUpstream}
	p.upstream = side{pair: p, peer: &p.client, fd: ufd, pending: s.ToClient}
	p.spec.ToUpstream, p.spec.ToClient = nil, nil
	if err := errors.Join(cerr, uerr); err != nil {
		p.closeSockets()
		return nil, fmt.Errorf("relay: %w", err)
	}
	return p, nil
}

func takeOver(c *net.TCPConn) (int, error) {
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	var dupErr error
	if err := raw.Control(func(orig uintptr) {
		fd, dupErr = unix.FcntlInt(orig, unix.F_DUPFD_CLOEXEC, 0)
	}); err != nil {
		return -1, err
	}
	if dupErr != nil {
		return -1, fmt.Errorf("dup: %w", dupErr)
	}
	return fd, nil
}

func (p *socketPair) closeSockets() {
	for _, s := range []*side{&p.client, &p.upstream} {
		if s.fd >= 0 {
			unix.Close(s.fd)
			s.fd = -1
		}
	}
}

func (p *socketPair) leave() { p.loop.post(command{p, cmdLeave}) }

// start begins to serve the pair.
func (p *socketPair) start() {
	p.started = true
	p.loop.pairs[p] = struct{}{}
	if p.spec.WebSocket {
		p.frames.feed(p.upstream.pending)
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
	p.closeSockets() // takes them out of epoll, too
	delete(l.pairs, p)
	delete(l.timed, p)
	l.ended(p, p.spec)
}

// goodbye sends what is there to send, then 1012 where that is possible, and
// gives the client a moment to hang up.
func (p *socketPair) beginClose() {
	if !p.started {
		p.leaving = true // start will come back here
		return
	}
	if p.closed || p.leaving {
		return
	}
	up := &p.upstream
	if !up.eof {
		up.readable = true
		up.pump() // the server's last words, a bounded number of them
		if p.closed {
			return
		}
	}
	p.leaving, p.awaiting = true, false
	if p.spec.WebSocket && p.frames.between() && !p.frames.sawClose && !up.done {
		up.pending = append(up.pending, closeRestart[:]...)
	}
	if p.client.discard { // cut off by the dead server; from now on it is read to see its end
		p.client.done, p.client.eof = false, false
	}
	p.client.discard = true
	p.client.drop()
	up.readable, up.eof = false, true
	p.loop.after(p, linger)
	up.pump()
	if !p.closed {
		p.client.readable = true
		p.client.pump()
	}
}

// timeUp is called when the time given to after has passed.
func (p *socketPair) timeUp() {
	if p.leaving || p.gone {
		p.close()
		return
	}
	p.awaiting, p.waited = false, true
	p.upstream.pump()
}

// clientGone bounds what the server may still do for nobody.
func (p *socketPair) clientGone() {
	if p.gone || p.leaving || p.closed {
		return
	}
	waits := p.awaiting
	p.gone, p.awaiting = true, false
	p.loop.after(p, goneWait)
	if waits { // for news that nobody is there to be told
		p.upstream.pump()
	}
}

// event takes what epoll tells of the side's socket.
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
	// Both directions of the client's socket are over. What it had said may
	// have to wait for a slow server; nobody waits for what the server says.
	if p := s.pair; s == &p.client && ev&(unix.EPOLLERR|unix.EPOLLHUP) != 0 && !p.closed && !p.leaving {
		p.clientGone()
		p.upstream.drop()
		p.upstream.cut()
		p.upstream.pump()
	}
}

// pump moves bytes from s to its peer until one of them has had enough.
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
		case errno != 0 || n == 0: // a reset ends the stream as an end does
			s.readable, s.eof = false, true
		default:
			// A short read has emptied the socket (epoll(7), Q9).
			s.readable = n == len(l.buf) || s.hup
			s.deliver(l.buf[:n])
		}
	}
}

// deliver writes b to the peer and keeps what the peer does not take.
func (s *side) deliver(b []byte) {
	if s.discard {
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

// flush writes pending bytes; it is false while some are left.
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

// write gives b to the socket and returns how much it took. ok is false when it
// will never take any more.
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

// drop forgets what the peer has not taken.
func (s *side) drop() {
	s.pair.loop.unhold(s.pending)
	s.pending, s.sent = nil, 0
}

// cut ends the direction that reads from s: its peer takes no more. The other
// direction goes on, because what the peer had said before may still be unread;
// epoll tells of the peer's end by itself.
func (s *side) cut() {
	s.readable, s.eof, s.discard = false, true, true
	if p := s.pair; s == &p.upstream {
		p.clientGone()
	}
}

// finish tells the peer that nothing more comes, and closes the pair when both
// directions are finished.
func (s *side) finish() {
	p := s.pair
	if s == &p.upstream && p.awaitsLeft() {
		if !p.awaiting {
			p.awaiting = true
			p.loop.after(p, leftWait)
		}
		return
	}
	s.done = true
	_ = unix.Shutdown(s.peer.fd, unix.SHUT_WR) // fails when the peer has gone already
	if s.peer.done {
		p.close()
	} else if s == &p.client && p.spec.WebSocket && !s.discard {
		p.clientGone()
	}
}

// awaitsLeft reports whether the server's end calls for a Close frame, should
// the session have left: the client is there, and nobody has said goodbye.
func (p *socketPair) awaitsLeft() bool {
	clientEnded := p.client.done && !p.client.discard
	return p.spec.WebSocket && !p.leaving && !p.waited && !p.gone && !clientEnded &&
		!p.upstream.discard && p.frames.between() && !p.frames.sawClose
}

// recv and send are the two calls that every relayed byte costs. They never
// block, so the scheduler need not be told of them.
func recv(fd int, b []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0, 0, 0)
	return int(n), errno
}

func send(fd int, b []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_NOSIGNAL, 0, 0)
	return int(n), errno
}
