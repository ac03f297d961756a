package reattach

import (
	"bytes"
	"io"
	"math/rand"
	"testing"

	"holdfast/internal/sessions/gateway/frame"
)

// chunks is a connection that returns its bytes in reads of odd sizes.
type chunks struct {
	b    []byte
	rand *rand.Rand
}

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.b) == 0 {
		return 0, io.EOF
	}
	n := min(len(p), len(c.b), 1+c.rand.Intn(3*smallBuffer))
	copy(p, c.b[:n])
	c.b = c.b[n:]
	return n, nil
}

// FuzzReader: the reader returns all bytes unchanged, for reads of any size. Frames that
// are not long are returned whole. Only an unfinished frame is missing.
func FuzzReader(f *testing.F) {
	f.Add([]byte{}, int64(1), uint(0))
	f.Add(append(text("hello"), clientFrame(frame.Fin|frame.Ping, "x")...), int64(2), uint(0))
	f.Add(text(string(make([]byte, 300))), int64(3), uint(2))
	f.Add(text(string(make([]byte, bigBuffer))), int64(4), uint(3))
	f.Add(append(text(string(make([]byte, 3*bigBuffer))), text("y")...), int64(5), uint(bigBuffer))
	f.Add([]byte{0x81, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4, 5}, int64(6), uint(1))
	f.Add([]byte{0x81, 0x7f, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2}, int64(7), uint(0))
	f.Fuzz(func(t *testing.T, in []byte, seed int64, ahead uint) {
		n := int(min(ahead, uint(len(in))))
		r := newReader(&chunks{in[n:], rand.New(rand.NewSource(seed))}, in[:n], &buffers{})
		defer r.release()
		var out []byte
		for {
			p, err := r.next()
			if err != nil {
				break
			}
			if len(p.b) == 0 || len(p.b) > bigBuffer {
				t.Fatalf("a piece of %d bytes", len(p.b))
			}
			if !p.long {
				whole := 0
				frame.Each(p.b, func(f frame.Header, all []byte) { whole += len(all); f.Payload(all) })
				if whole != len(p.b) {
					t.Fatalf("a piece of %d bytes has %d of whole frames", len(p.b), whole)
				}
			}
			out = append(out, p.b...)
		}
		if !bytes.HasPrefix(in, out) {
			t.Fatal("the bytes differ")
		}
		rest := in[len(out):]
		if f, ok := frame.Parse(rest); len(rest) > bigBuffer || ok && f.FrameSize() <= len(rest) || r.midFrame() && len(rest) > 0 {
			t.Fatalf("%d bytes were not returned", len(rest))
		}
	})
}

func TestServerFrames(t *testing.T) {
	for _, n := range []int{0, 1, 125, 126, 65535, 65536} {
		b := frame.Server(frame.Text, make([]byte, n))
		if f, ok := frame.Parse(b); !ok || f.FrameSize() != len(b) || f.Masked || int(f.Length) != n || !f.Last() || f.Op() != frame.Text {
			t.Errorf("%d bytes: %+v, %v", n, f, ok)
		}
	}
	if b := frame.Server(frame.Pong, make([]byte, 200)); len(b) != 2+frame.MaxControl {
		t.Errorf("a Pong of %d bytes", len(b))
	}
}
