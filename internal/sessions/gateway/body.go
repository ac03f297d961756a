package gateway

import (
	"errors"
	"io"
)

// keptBody is how much of a request's body is kept for another try. It has to
// be more than what is read before the first byte is written: what net/http's
// and io.Copy's buffers hold, 4 and 32 KiB.
const keptBody = 64 << 10

// errSpent is a body that cannot be read again.
var errSpent = errors.New("too much of the request's body was read for another try")

// body is a request's, readable anew from its beginning for as long as little
// of it was read. Its Close does nothing: a failed try closes what it was given.
// One goroutine at a time may use it.
type body struct {
	r    io.Reader
	kept []byte // all that was read, unless spent
	at   int    // of kept, where the present try reads
	err  error  // of r, io.EOF included
	gone bool   // more than keptBody was read
}

// again has the next Read start at the beginning. It is false where that cannot
// be, be it that the client itself has broken off.
func (b *body) again() bool {
	b.at = 0
	return !b.spent()
}

func (b *body) spent() bool { return b.gone || b.failed() }

// failed reports whether the body could not be read to its end.
func (b *body) failed() bool { return b.err != nil && b.err != io.EOF }

func (b *body) Read(p []byte) (int, error) {
	if b.at < len(b.kept) {
		n := copy(p, b.kept[b.at:])
		b.at += n
		return n, nil
	}
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.r.Read(p)
	b.err = err
	if b.gone = b.gone || len(b.kept)+n > keptBody; b.gone {
		b.kept, b.at = nil, 0
	} else {
		b.kept = append(b.kept, p[:n]...)
		b.at = len(b.kept)
	}
	return n, err
}

func (b *body) Close() error { return nil }

// first waits for the body's first bytes, or its end, and leaves them unread.
// The error is why there are none and no end.
func (b *body) first() error {
	if len(b.kept) == 0 && b.err == nil {
		var buf [512]byte
		if _, err := b.Read(buf[:]); err != nil && err != io.EOF {
			return err
		}
		b.at = 0
	}
	if b.failed() {
		return b.err
	}
	return nil
}
