package frame

import (
	"encoding/binary"
	"io"
)

const tagLen = 2

// Tagged returns a writer that sends its input as frames of kind k. Each payload begins with
// the tag in two bytes, big-endian.
func (c *Conn) Tagged(k Kind, tag uint16) io.Writer { return tagged{c, k, tag} }

type tagged struct {
	c   *Conn
	k   Kind
	tag uint16
}

func (w tagged) Write(p []byte) (n int, err error) {
	for n < len(p) {
		part := p[n:min(len(p), n+MaxPayload-tagLen)]
		if err := w.c.Write(w.k, append(binary.BigEndian.AppendUint16(nil, w.tag), part...)); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

// Untag splits a payload of Tagged. ok is false if it has no tag.
func Untag(p []byte) (tag uint16, rest []byte, ok bool) {
	if len(p) < tagLen {
		return 0, nil, false
	}
	return binary.BigEndian.Uint16(p), p[tagLen:], true
}
