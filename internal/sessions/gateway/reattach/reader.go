package reattach

import (
	"io"
	"sync"

	"holdfast/internal/sessions/gateway/frame"
)

const (
	// smallBuffer is the size of the buffer of an idle peer. When it is full, a
	// big buffer from the pool replaces it while there is enough to read.
	smallBuffer = 4 << 10

	// bigBuffer is the length of the longest frame that is held until it is
	// complete. A longer frame passes through in pieces.
	bigBuffer = 64 << 10
)

// buffers is a pool of big buffers.
type buffers struct{ pool sync.Pool }

func (p *buffers) get() *[bigBuffer]byte {
	if b, ok := p.pool.Get().(*[bigBuffer]byte); ok {
		return b
	}
	return new([bigBuffer]byte)
}

// reader splits the bytes of a connection at frame boundaries. One goroutine
// may use it.
type reader struct {
	src   io.Reader
	pool  *buffers
	small []byte
	big   *[bigBuffer]byte // nil: small is in use
	from  int              // buffered bytes are buf[from:to]
	to    int
	ahead []byte // already read; comes first
	rest  uint64 // bytes still to come of a long frame that is returned in pieces
}

func newReader(src io.Reader, ahead []byte, pool *buffers) *reader {
	return &reader{src: src, ahead: ahead, pool: pool, small: make([]byte, smallBuffer)}
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
	return r.small
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
	left := r.buf()[r.from:r.to]
	switch {
	case r.big == nil && len(left) == len(r.small):
		r.grow(left)
	case r.big != nil && len(left) < smallBuffer && r.to < bigBuffer:
		// The last read did not fill the big buffer: return to the small one.
		n := copy(r.small, left)
		r.release()
		r.from, r.to = 0, n
	default:
		r.to = copy(r.buf(), left)
		r.from = 0
	}
	if len(r.ahead) > 0 {
		n := copy(r.buf()[r.to:], r.ahead)
		r.ahead = r.ahead[n:]
		r.to += n
		return nil
	}
	n, err := r.src.Read(r.buf()[r.to:])
	r.to += n
	if n > 0 && r.big == nil && r.to == len(r.small) {
		r.grow(r.buf()[r.from:r.to])
	}
	if n > 0 {
		return nil // the next read returns the error again
	}
	return err
}

// grow switches to a big buffer that begins with left.
func (r *reader) grow(left []byte) {
	big := r.pool.get()
	r.to = copy(big[:], left)
	r.from, r.big = 0, big
}

// release returns the big buffer to the pool. The last piece is no longer
// valid.
func (r *reader) release() {
	if r.big != nil {
		r.pool.pool.Put(r.big)
		r.big = nil
	}
	r.from, r.to = 0, 0
}
