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

// copyPair relays where the client's side is not a plain socket (TLS): one
// goroutine per direction.
type copyPair struct {
	spec   Spec
	client net.Conn
	frames frames     // of what the client was sent
	pool   *sync.Pool // of *[bufferSize]byte; one is taken only while bytes are there

	once sync.Once
	gone chan struct{} // closed by leave
}

// tlsRead is the buffer that waits for a TLS client. A record holds up to 16 KiB
// (RFC 8446, 5.1); what does not fit waits decrypted inside the TLS layer.
const tlsRead = 4 << 10

func newCopyPair(s Spec, pool *sync.Pool) *copyPair {
	return &copyPair{spec: s, client: s.Client, pool: pool, gone: make(chan struct{})}
}

func (p *copyPair) leave() {
	p.once.Do(func() {
		close(p.gone)
		p.spec.Upstream.SetDeadline(time.Unix(1, 0)) // ends both directions' waits for it
		p.client.SetDeadline(time.Now().Add(linger))
	})
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
	send := func(b []byte) {
		if discard || p.left() {
			return
		}
		if _, err := p.spec.Upstream.Write(b); err != nil {
			discard = true
		}
	}
	if len(p.spec.ToUpstream) > 0 {
		send(p.spec.ToUpstream)
	}
	small := make([]byte, tlsRead)
	for {
		n, err := p.client.Read(small)
		send(small[:n])
		if err != nil {
			break
		}
		if n == len(small) {
			if err := p.readOn(send); err != nil {
				break
			}
		}
	}
	_ = p.spec.Upstream.CloseWrite() // fails when the upstream has gone already
}

// readOn reads with a big buffer for as long as that is of use.
func (p *copyPair) readOn(send func([]byte)) error {
	buf := p.pool.Get().(*[bufferSize]byte)
	defer p.pool.Put(buf)
	for {
		n, err := p.client.Read(buf[:])
		send(buf[:n])
		if err != nil || n < tlsRead {
			return err
		}
	}
}

// toClient copies what the upstream says, and says the last word.
func (p *copyPair) toClient() {
	err := p.write(p.spec.ToClient)
	for err == nil {
		err = p.copyOnce()
	}
	var failed *writeError
	if errors.As(err, &failed) { // the client has gone; what it said before may be on its way
		p.client.SetReadDeadline(time.Now().Add(linger))
		return
	}
	if p.spec.WebSocket && p.frames.between() && !p.frames.sawClose && p.sessionLeft() {
		_, _ = p.client.Write(closeRestart[:])
	}
	if c, ok := p.client.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite()
		if errors.Is(err, io.EOF) {
			return // only a true end leaves the other direction open
		}
	}
	p.client.SetReadDeadline(time.Now().Add(linger))
}

// sessionLeft waits a moment for the news that explains the server's end.
func (p *copyPair) sessionLeft() bool {
	t := time.NewTimer(orphanWait)
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
	raw, err := p.spec.Upstream.SyscallConn()
	if err != nil {
		return err
	}
	var buf *[bufferSize]byte
	var n int
	var errno error
	err = raw.Read(func(fd uintptr) bool {
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
		return p.lastWords(raw)
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

// lastWords copies what the upstream had said when the session left.
func (p *copyPair) lastWords(raw syscall.RawConn) error {
	buf := p.pool.Get().(*[bufferSize]byte)
	defer p.pool.Put(buf)
	for range turns {
		var n int
		var errno error
		if err := raw.Control(func(fd uintptr) { n, errno = readSocket(int(fd), buf[:]) }); err != nil {
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
