package gateway

import (
	"errors"
	"io"
)

// keptBody is how many bytes of a request's body are kept for another try. It
// is larger than what is read before the first byte is written: the buffers of
// net/http (4 KiB) and io.Copy (32 KiB).
const keptBody = 64 << 10

// errSpent reports that a body cannot be read again.
var errSpent = errors.New("too much of the request's body was read for another try")

// body is the body of a request. It can be read again from its start until more
// than keptBody bytes were read. Close does nothing, because a failed try
// closes its request's body. One goroutine at a time may use it.
type body struct {
	r    io.Reader
	kept []byte // everything that was read, unless spent
	at   int    // read position of the current try in kept
	err  error  // from r, including io.EOF
	gone bool   // more than keptBody bytes were read
}

// again makes the next Read start at the beginning. It returns false if that is
// impossible, also when the client ended the body early.
func (b *body) again() bool {
	b.at = 0
	return !b.spent()
}

func (b *body) spent() bool { return b.gone || b.failed() }

// failed reports whether reading the body ended with an error before its end.
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

// first waits until the body has a first byte or ends, and leaves the bytes
// unread. The error is that of the body.
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
