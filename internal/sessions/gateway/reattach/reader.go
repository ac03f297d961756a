package reattach

import (
	"io"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"holdfast/internal/sessions/gateway/frame"
)

const (
	// smallBuffer is the size of the buffer that a read begins with. When it is full, a big
	// buffer replaces it while there is enough to read.
	smallBuffer = 4 << 10

	// bigBuffer is the length of the longest frame that is held until it is
	// complete. A longer frame passes through in pieces.
	bigBuffer = 64 << 10
)

// buffers are pools of buffers.
type buffers struct{ small, big sync.Pool }

// take returns a buffer of a pool, or a new one.
func take[T any](p *sync.Pool) *T {
	if b, ok := p.Get().(*T); ok {
		return b
	}
	return new(T)
}

// reader splits the bytes of a connection at frame boundaries. One goroutine
// may use it.
type reader struct {
	src   io.Reader
	raw   syscall.RawConn // of src, nil if that is no plain socket
	pool  *buffers
	small *[smallBuffer]byte // nil: big is in use, or nothing is buffered
	big   *[bigBuffer]byte
	from  int // buffered bytes are buf[from:to]
	to    int
	ahead []byte // already read; comes first
	rest  uint64 // bytes still to come of a long frame that is returned in pieces
}

func newReader(src io.Reader, ahead []byte, pool *buffers) *reader {
	r := &reader{src: src, ahead: ahead, pool: pool}
	if c, ok := src.(*net.TCPConn); ok {
		r.raw, _ = c.SyscallConn() // fails if it is closed, and so will a read
	}
	return r
}

// piece is what a reader returns; it is valid until the next call.
type piece struct {
	b []byte
	// long means that b is a part of one frame that is longer than bigBuffer:
	// first its header, then its payload piece by piece. Otherwise b contains
	// whole frames.
	long bool
	// head means that b begins with a frame's header.
	head bool
}

// next waits for the next piece. A frame that is incomplete when the connection
// ends is not returned. The error is that of the connection.
func (r *reader) next() (piece, error) {
	for {
		if p, ok := r.cut(); ok {
			return p, nil
		}
		if err := r.fill(); err != nil {
			return piece{}, err
		}
	}
}

// midFrame reports whether a part of a long frame was returned and its rest was
// not.
func (r *reader) midFrame() bool { return r.rest > 0 }

func (r *reader) buf() []byte {
	if r.big != nil {
		return r.big[:]
	}
	if r.small == nil {
		r.small = take[[smallBuffer]byte](&r.pool.small)
	}
	return r.small[:]
}

// read reads behind buf[:to]. A reader of a socket with nothing buffered waits without a
// buffer.
func (r *reader) read() (n int, err error) {
	if r.raw == nil || r.to > 0 || r.big != nil {
		return r.src.Read(r.buf()[r.to:])
	}
	waits := r.raw.Read(func(fd uintptr) bool {
		n, err = ignoringEINTR(func() (int, error) { return unix.Read(int(fd), r.buf()) })
		if err == unix.EAGAIN {
			r.releaseSmall()
		}
		return err != unix.EAGAIN
	})
	switch {
	case waits != nil:
		return 0, waits
	case n == 0 && err == nil:
		return 0, io.EOF
	}
	return max(n, 0), err
}

func ignoringEINTR(f func() (int, error)) (n int, err error) {
	for {
		if n, err = f(); err != unix.EINTR {
			return n, err
		}
	}
}

// cut takes the complete frames, or the next part of a long frame, out of the
// buffer.
func (r *reader) cut() (piece, bool) {
	b := r.buf()[r.from:r.to]
	if r.rest > 0 {
		n := int(min(r.rest, uint64(len(b))))
		r.rest -= uint64(n)
		r.from += n
		return piece{b: b[:n], long: true}, n > 0
	}
	whole := 0
	for {
		f, ok := frame.Parse(b[whole:])
		if !ok {
			break
		}
		if size := f.FrameSize(); size <= len(b)-whole {
			whole += size
			continue
		} else if size > bigBuffer && whole == 0 {
			r.rest = f.Length - uint64(len(b)-f.Size)
			r.from = r.to
			return piece{b: b, long: true, head: true}, true
		}
		break
	}
	r.from += whole
	return piece{b: b[:whole], head: true}, whole > 0
}

// fill reads more behind the bytes that are left in the buffer.
func (r *reader) fill() error {
	var left []byte
	if r.to > r.from {
		left = r.buf()[r.from:r.to]
	}
	switch {
	case len(left) == smallBuffer && r.big == nil:
		r.grow(left)
	case r.big != nil && len(left) < smallBuffer && r.to < bigBuffer:
		// The last read did not fill the big buffer: return to the small one.
		small := take[[smallBuffer]byte](&r.pool.small)
		n := copy(small[:], left)
		r.release()
		r.small, r.to = small, n
	case len(left) == 0:
		r.from, r.to = 0, 0
	default:
		r.from, r.to = 0, copy(r.buf(), left)
	}
	if len(r.ahead) > 0 {
		n := copy(r.buf()[r.to:], r.ahead)
		r.ahead = r.ahead[n:]
		r.to += n
		return nil
	}
	n, err := r.read()
	r.to += n
	if n > 0 && r.big == nil && r.to == smallBuffer {
		r.grow(r.buf()[r.from:r.to])
	}
	if n > 0 {
		return nil // the next read returns the error again
	}
	return err
}

// grow switches to a big buffer that begins with left.
func (r *reader) grow(left []byte) {
	big := take[[bigBuffer]byte](&r.pool.big)
	r.to = copy(big[:], left)
	r.releaseSmall()
	r.from, r.big = 0, big
}

func (r *reader) releaseSmall() {
	if r.small != nil {
		r.pool.small.Put(r.small)
		r.small = nil
	}
}

// release returns the buffers to their pools. The last piece is no longer valid.
func (r *reader) release() {
	r.releaseSmall()
	if r.big != nil {
		r.pool.big.Put(r.big)
		r.big = nil
	}
	r.from, r.to = 0, 0
}
