package relay

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/sessions/gateway/closing"
)

// copyPair relays if a side is not a plain socket (TLS), with one goroutine per
// direction.
type copyPair struct {
	spec   Spec
	client net.Conn
	plain  syscall.RawConn // of the upstream; nil if it is not a plain socket
	frames frames          // of the bytes sent to the client
	pool   *sync.Pool      // of *[bufferSize]byte; a buffer is taken only while there are bytes
	grace  time.Duration   // closing.GoneWait

	asked frames     // of the bytes that the client sent; only with an Activity
	down  sync.Mutex // guards frames and writes to the client

	watch sync.WaitGroup // see watchClient

	mu     sync.Mutex    // guards the order of the deadlines
	gone   chan struct{} // closed by leave
	isGone bool
}

// tlsRead is the size of the buffer that waits for a TLS peer. A record holds
// up to 16 KiB (RFC 8446, 5.1); the rest of it waits decrypted inside the TLS
// layer.
const tlsRead = 4 << 10

// lastReadTime is how long a server behind TLS, which is another node's
// gateway, may still send when the session leaves; mostly its own 1012. The
// bytes that a plain socket holds by then can be read without waiting.
const lastReadTime = 100 * time.Millisecond

func newCopyPair(s Spec, pool *sync.Pool) *copyPair {
	p := &copyPair{spec: s, client: s.Client, pool: pool, grace: closing.GoneWait, gone: make(chan struct{})}
	if c, ok := s.Upstream.(*net.TCPConn); ok {
		p.plain, _ = c.SyscallConn() // fails only for a nil connection
	}
	return p
}

func (p *copyPair) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isGone {
		return
	}
	p.isGone = true
	close(p.gone)
	p.spec.Upstream.SetWriteDeadline(time.Unix(1, 0)) // ends the waits of both directions
	wait := time.Unix(1, 0)
	if p.plain == nil {
		wait = time.Now().Add(lastReadTime)
	}
	p.spec.Upstream.SetReadDeadline(wait)
	p.client.SetDeadline(time.Now().Add(closing.Timeout))
}

// clientGone limits the time of the upstream once the client has gone.
func (p *copyPair) clientGone() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.isGone {
		p.spec.Upstream.SetDeadline(time.Now().Add(p.grace))
	}
}

// run returns when both directions have ended and both connections are closed.
func (p *copyPair) run() {
	var up sync.WaitGroup
	up.Go(p.toUpstream)
	p.toClient()
	up.Wait()
	p.client.Close()
	p.spec.Upstream.Close()
	p.watch.Wait()
}

// toUpstream copies from the client. When the upstream accepts nothing more it
// continues to read, because toClient lingers.
func (p *copyPair) toUpstream() {
	discard := false
	send := func(b []byte) error {
		if discard || closing.Closed(p.gone) || p.spec.Activity != nil && p.reportAsked(b) {
			return nil
		}
		if _, err := p.spec.Upstream.Write(b); err != nil {
			discard = true
		}
		return nil
	}
	if len(p.spec.ToUpstream) > 0 {
		_ = send(p.spec.ToUpstream) // never fails
	}
	err := p.copyAll(p.client, send)
	closing.Write(p.spec.Upstream)
	if p.spec.WebSocket || !errors.Is(err, io.EOF) {
		p.clientGone()
		return
	}
	p.watch.Go(p.watchClient)
}

// watchClient notices that a client that has ended its direction is gone altogether.
// The socket then reports POLLHUP or POLLERR (poll(2)), but no direction reads from it
// any more. It returns when that happens or when the client's connection is closed.
func (p *copyPair) watchClient() {
	raw := Socket(p.client)
	if raw == nil {
		p.clientGone()
		return
	}
	gone := false
	_ = raw.Read(func(fd uintptr) bool { // called again for each event of the socket
		fds := []unix.PollFd{{Fd: int32(fd)}} // POLLHUP and POLLERR are always reported
		n, err := unix.Poll(fds, 0)
		gone = err == nil && n > 0
		return gone
	})
	if gone {
		p.clientGone()
	}
}

// Socket returns the socket of a connection, also below TLS, nil if there is none. Any
// goroutine may call it.
func Socket(c net.Conn) syscall.RawConn {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = t.NetConn()
	}
	sc, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// copyAll passes the bytes of c to send. It waits with a small buffer and
// continues with a big one while there is enough to read. It returns the first
// error.
func (p *copyPair) copyAll(c net.Conn, send func([]byte) error) error {
	small := make([]byte, tlsRead)
	for {
		n, err := c.Read(small)
		if failed := send(small[:n]); failed != nil {
			return failed
		}
		if err == nil && n == len(small) {
			err = p.readOn(c, send)
		}
		if err != nil {
			return err
		}
	}
}

func (p *copyPair) readOn(c net.Conn, send func([]byte) error) error {
	buf := p.pool.Get().(*[bufferSize]byte)
	defer p.pool.Put(buf)
	for {
		n, err := c.Read(buf[:])
		if failed := send(buf[:n]); failed != nil {
			return failed
		}
		if err != nil || n < tlsRead {
			return err
		}
	}
}

// toClient copies from the upstream and sends the final Close frame if one is
// due.
func (p *copyPair) toClient() {
	err := p.write(p.spec.ToClient)
	if p.plain == nil && err == nil {
		err = p.copyAll(p.spec.Upstream, p.write)
	}
	for err == nil {
		err = p.copyOnce()
	}
	var failed *writeError
	if errors.As(err, &failed) { // the client has gone; its earlier bytes may still be in transit
		p.clientGone()
		p.client.SetReadDeadline(time.Now().Add(closing.Timeout))
		return
	}
	if p.spec.WebSocket && p.frames.between() && !p.frames.sawClose && closing.AwaitLeft(context.Background(), p.gone) {
		p.down.Lock()
		_, _ = p.client.Write(closeRestart())
		p.down.Unlock()
	}
	if _, ok := p.client.(interface{ CloseWrite() error }); ok {
		closing.Write(p.client)
		if errors.Is(err, io.EOF) {
			return // only a real EOF leaves the other direction open
		}
	}
	p.client.SetReadDeadline(time.Now().Add(closing.Timeout))
}

type writeError struct{ error }

func (p *copyPair) write(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	p.down.Lock()
	defer p.down.Unlock()
	if a := p.spec.Activity; a != nil {
		if _, controls := p.frames.controls(b); !p.spec.WebSocket || !controls || !a.Control() {
			a.Data(p.spec.Reason)
		}
	}
	if p.spec.WebSocket {
		p.frames.feed(b)
	}
	if _, err := p.client.Write(b); err != nil {
		return &writeError{err}
	}
	return nil
}

// reportAsked tells the session's Activity of bytes of the client. It returns true if they
// are Pings for a session that sleeps, which are then answered.
func (p *copyPair) reportAsked(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	if p.spec.WebSocket {
		pongs, controls := p.asked.controls(b)
		if controls && !p.spec.Activity.Control() && p.answer(pongs) {
			return true
		}
		p.asked.feed(b)
		if controls {
			return false
		}
	}
	p.spec.Activity.Data(p.spec.Reason)
	return false
}

// answer sends the client Pongs of the gateway. If no frame may be sent now, it wakes the
// session and returns false.
func (p *copyPair) answer(pongs []byte) bool {
	p.down.Lock()
	defer p.down.Unlock()
	if !p.frames.between() || p.frames.sawClose {
		p.spec.Activity.Data(p.spec.Reason)
		return false
	}
	_, _ = p.client.Write(pongs) // fails if the client has gone
	return true
}

// copyOnce waits for bytes of the upstream without a buffer, then copies them.
// io.EOF is the end of the upstream.
func (p *copyPair) copyOnce() error {
	var buf *[bufferSize]byte
	var n int
	var errno error
	err := p.plain.Read(func(fd uintptr) bool {
		buf = p.pool.Get().(*[bufferSize]byte)
		n, errno = readSocket(int(fd), buf[:])
		if errno == syscall.EAGAIN {
			p.pool.Put(buf)
			buf = nil
			return false
		}
		return true
	})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return p.readRest()
	}
	if buf == nil {
		return err
	}
	defer p.pool.Put(buf)
	switch {
	case errno != nil:
		return errno
	case n == 0:
		return io.EOF
	}
	return p.write(buf[:n])
}

// readRest copies the bytes that the upstream had sent when the session left.
func (p *copyPair) readRest() error {
	buf := p.pool.Get().(*[bufferSize]byte)
	defer p.pool.Put(buf)
	for range turns {
		var n int
		var errno error
		if err := p.plain.Control(func(fd uintptr) { n, errno = readSocket(int(fd), buf[:]) }); err != nil {
			return err
		}
		if errno != nil || n == 0 {
			break
		}
		if err := p.write(buf[:n]); err != nil {
			return err
		}
	}
	return os.ErrDeadlineExceeded
}

func readSocket(fd int, b []byte) (int, error) {
	for {
		if n, err := unix.Read(fd, b); err != unix.EINTR {
			return n, err
		}
	}
}
