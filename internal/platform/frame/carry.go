package frame

import "io"

// Stream is a connection of two directions, of which each may end before the other, as
// with TCP.
type Stream interface {
	io.ReadWriteCloser
	// CloseWrite ends the direction of the writes.
	CloseWrite() error
}

// Send copies what s reads into frames of kind k. The end of the input becomes an empty
// frame. The error is that of s or c.
func Send(c *Conn, k Kind, s io.Reader) error {
	if _, err := io.Copy(c.Writer(k), s); err != nil {
		return err
	}
	return c.Write(k, nil)
}

// Receiver writes the frames of one kind to a stream.
type Receiver struct {
	Kind Kind
	To   Stream
	// Over is called once, before the next frame is read: with nil when an empty frame
	// has ended the direction, or with the error of the stream. Later frames of the kind
	// are discarded.
	Over func(error)
}

// Receive reads frames until other returns true for a frame of another kind, or until
// the connection ends: then it returns its error.
func (r Receiver) Receive(c *Conn, other func(Kind, []byte) (end bool)) error {
	over := false
	for {
		kind, p, err := c.Read()
		switch {
		case err != nil:
			return unexpected(err)
		case kind != r.Kind:
			if other(kind, p) {
				return nil
			}
			continue
		case over:
			continue
		case len(p) == 0:
			over = true
			_ = r.To.CloseWrite() // fails only if the connection has ended, which its reader sees
			r.Over(nil)
			continue
		}
		if _, err := r.To.Write(p); err != nil {
			over = true
			r.Over(err)
		}
	}
}
