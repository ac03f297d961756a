package relay

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// copyPair relays where a side is not a plain socket (TLS): one goroutine per
// direction.
type copyPair struct {
	spec   Spec
	client net.Conn
	plain  syscall.RawConn // the upstream's; nil where it is no plain socket
	frames frames          // of what the client was sent
	pool   *sync.Pool      // of *[bufferSize]byte; one is taken only while bytes are there
	grace  time.Duration   // goneWait

	mu     sync.Mutex    // guards the deadlines' order
	gone   chan struct{} // closed by leave
	isGone bool
}

// tlsRead is the buffer that waits for a TLS peer. A record holds up to 16 KiB
// (RFC 8446, 5.1); what does not fit waits decrypted inside the TLS layer.
const tlsRead = 4 << 10

// lastReadTime is how long a server behind TLS, another node's gateway, has for what
// it was about to say when the session left: its own 1012, mostly. What a plain
// socket holds by then can be read without waiting.
const lastReadTime = 100 * time.Millisecond

func newCopyPair(s Spec, pool *sync.Pool) *copyPair {
	p := &copyPair{spec: s, client: s.Client, pool: pool, grace: goneWait, gone: make(chan struct{})}
	if c, ok := s.Upstream.(*net.TCPConn); ok {
		p.plain, _ = c.SyscallConn() // fails for a nil connection only
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
	p.spec.Upstream.SetWriteDeadline(time.Unix(1, 0)) // ends both directions' waits for it
	wait := time.Unix(1, 0)
	if p.plain == nil {
		wait = time.Now().Add(lastReadTime)
	}
	p.spec.Upstream.SetReadDeadline(wait)
	p.client.SetDeadline(time.Now().Add(linger))
}

// clientGone bounds what the upstream may still do for nobody.
func (p *copyPair) clientGone() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.isGone {
		p.spec.Upstream.SetDeadline(time.Now().Add(p.grace))
	}
}

func (p *copyPair) left() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
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
}

// toUpstream copies what the client says. When the upstream takes no more it
// goes on reading for the linger's sake: see toClient.
func (p *copyPair) toUpstream() {
	discard := false
	send := func(b []byte) error {
		if discard || p.left() {
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
	closeWrite(p.spec.Upstream)
	if p.spec.WebSocket || !errors.Is(err, io.EOF) {
		p.clientGone()
	}
}

// closeWrite fails when the peer has gone already.
func closeWrite(c net.Conn) {
	if c, ok := c.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite()
	}
}

// copyAll sends what c says. It waits with a small buffer and reads on with a
// big one for as long as that is of use. It returns the first error.
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

// toClient copies what the upstream says, and says the last word.
func (p *copyPair) toClient() {
	err := p.write(p.spec.ToClient)
	if p.plain == nil && err == nil {
		err = p.copyAll(p.spec.Upstream, p.write)
	}
	for err == nil {
		err = p.copyOnce()
	}
	var failed *writeError
	if errors.As(err, &failed) { // the client has gone; what it said before may be on its way
		p.clientGone()
		p.client.SetReadDeadline(time.Now().Add(linger))
		return
	}
	if p.spec.WebSocket && p.frames.between() && !p.frames.sawClose && p.sessionLeft() {
		_, _ = p.client.Write(closeRestart[:])
	}
	if _, ok := p.client.(interface{ CloseWrite() error }); ok {
		closeWrite(p.client)
		if errors.Is(err, io.EOF) {
			return // only a true end leaves the other direction open
		}
	}
	p.client.SetReadDeadline(time.Now().Add(linger))
}

// sessionLeft waits a moment for the news that explains the server's end.
func (p *copyPair) sessionLeft() bool {
	t := time.NewTimer(leftWait)
	defer t.Stop()
	select {
	case <-p.gone:
		return true
	case <-t.C:
		return false
	}
}

type writeError struct{ error }

func (p *copyPair) write(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if p.spec.WebSocket {
		p.frames.feed(b)
	}
	if _, err := p.client.Write(b); err != nil {
		return &writeError{err}
	}
	return nil
}

// copyOnce waits for bytes of the upstream without a buffer, then copies what
// is there. io.EOF is the upstream's end.
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

// readRest copies what the upstream had said when the session left.
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
