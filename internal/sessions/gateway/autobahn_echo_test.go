package gateway

import (
	"bufio"
	"bytes"
	"compress/flate"
	"encoding/binary"
	"io"
	"net"
	"time"
	"unicode/utf8"

	"holdfast/internal/sessions/gateway/closing"
	"holdfast/internal/sessions/gateway/frame"
)

// wsFrame is a WebSocket frame (RFC 6455, 5.2).
type wsFrame struct {
	first   byte
	payload []byte
}

const rsv1 = 0x40

// encode returns the bytes of the frame. Clients mask.
func (f wsFrame) encode(mask bool) []byte {
	b := frame.Server(frame.Text, f.payload) // its header has no limit for control frames
	b[0] = f.first
	if !mask {
		return b
	}
	h, _ := frame.Parse(b)
	key := [4]byte{0x37, 0xfa, 0x21, 0x3d}
	out := append(append([]byte{}, b[:h.Size]...), key[:]...)
	out[1] |= 0x80
	for i, c := range b[h.Size:] {
		out = append(out, c^key[i%4])
	}
	return out
}

func closeFrame(code uint16, reason string) wsFrame {
	return wsFrame{frame.Fin | frame.Close, append(binary.BigEndian.AppendUint16(nil, code), reason...)}
}

// strictPeer is an end of a WebSocket that applies RFC 6455, and RFC 7692 with a
// deflater, to the letter. It returns each message in the fragments in which it came. It
// fails the connection at the first octet that is wrong.
type strictPeer struct {
	client   bool // then it masks, and its server must not
	deflater *deflater
	inflater inflater

	head    []byte // incomplete header, or the whole one while a payload follows
	frame   frame.Header
	payload []byte
	rest    uint64
	part    []byte // incomplete character of a text

	kind    byte // first byte of the message in progress, 0 if there is none
	message []byte
	sizes   []int // of the message's fragments

	ended bool // it sent a Close frame
	out   []byte
}

// feed returns the answer to the next octets.
func (p *strictPeer) feed(b []byte) []byte {
	p.out = nil
	for len(b) > 0 && !p.ended {
		if p.rest == 0 {
			p.head = append(p.head, b[0])
			b = b[1:]
			p.header()
		} else {
			n := min(p.rest, uint64(len(b)))
			p.data(b[:n])
			b = b[n:]
		}
	}
	return p.out
}

// idle reports whether the next octet begins a message, or is a control frame.
func (p *strictPeer) idle() bool { return len(p.head) == 0 && p.kind == 0 && !p.ended }

func (p *strictPeer) send(f wsFrame) { p.out = append(p.out, f.encode(p.client)...) }

func (p *strictPeer) fail(code uint16) {
	p.send(closeFrame(code, ""))
	p.ended = true
}

func (p *strictPeer) header() {
	f, ok := frame.Parse(p.head)
	if !ok {
		return
	}
	if !p.legal(f) {
		p.fail(1002)
		return
	}
	p.frame, p.rest, p.payload = f, f.Length, nil
	if !f.Control() && p.kind == 0 {
		p.kind, p.message, p.sizes, p.part = f.First, nil, nil, nil
	}
	if p.rest == 0 {
		p.whole()
	}
}

func (p *strictPeer) legal(f frame.Header) bool {
	rsv := f.First & 0x70
	if p.deflater != nil && (f.Op() == 1 || f.Op() == 2) {
		rsv &^= rsv1
	}
	switch {
	case rsv != 0 || f.Masked == p.client:
		return false
	case f.Op() == frame.Close || f.Op() == frame.Ping || f.Op() == frame.Pong:
		return f.Last() && f.Length <= frame.MaxControl
	case f.Op() == 0:
		return p.kind != 0
	}
	return f.Op() <= 2 && p.kind == 0
}

func (p *strictPeer) isText() bool { return p.kind&0x0f == frame.Text }

// data takes the next octets of a payload.
func (p *strictPeer) data(b []byte) {
	at := len(p.payload)
	p.payload = append(p.payload, b...)
	if p.frame.Masked {
		key := p.head[len(p.head)-4:]
		for i := at; i < len(p.payload); i++ {
			p.payload[i] ^= key[i%4]
		}
	}
	p.rest -= uint64(len(b))
	if !p.frame.Control() && p.isText() && p.kind&rsv1 == 0 && !p.characters(p.payload[at:]) {
		p.fail(1007)
		return
	}
	if p.rest == 0 {
		p.whole()
	}
}

// characters reports whether b can continue a text.
func (p *strictPeer) characters(b []byte) bool {
	b = append(p.part, b...)
	for len(b) > 0 && utf8.FullRune(b) {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 {
			return false
		}
		b = b[n:]
	}
	p.part = append([]byte(nil), b...)
	return true
}

// whole takes a complete frame.
func (p *strictPeer) whole() {
	p.head = nil
	switch p.frame.Op() {
	case frame.Ping:
		p.send(wsFrame{frame.Fin | frame.Pong, p.payload})
	case frame.Pong:
	case frame.Close:
		p.closing()
	default:
		p.message = append(p.message, p.payload...)
		p.sizes = append(p.sizes, len(p.payload))
		if p.frame.Last() {
			p.echo()
			p.kind = 0
		}
	}
}

func (p *strictPeer) closing() {
	if len(p.payload) == 0 {
		p.send(wsFrame{frame.Fin | frame.Close, nil})
		p.ended = true
		return
	}
	code := uint16(1002)
	if len(p.payload) > 1 {
		code = binary.BigEndian.Uint16(p.payload)
		if code < 1000 || code >= 5000 || code > 1014 && code < 3000 || code >= 1004 && code <= 1006 {
			code = 1002
		} else if !utf8.Valid(p.payload[2:]) {
			code = 1007
		}
	}
	p.fail(code)
}

// echo returns the message.
func (p *strictPeer) echo() {
	first, b, sizes := p.kind&^frame.Fin, p.message, p.sizes
	if p.kind&rsv1 != 0 {
		plain, err := p.inflater.message(b)
		if err != nil || p.isText() && !utf8.Valid(plain) {
			p.fail(1007)
			return
		}
		b = p.deflater.message(plain)
		sizes = fragments(len(b), sizes[0])
	} else if len(p.part) > 0 {
		p.fail(1007)
		return
	}
	for i, n := range sizes {
		if i == len(sizes)-1 {
			first |= frame.Fin
		}
		p.send(wsFrame{first, b[:n]})
		b, first = b[n:], 0
	}
}

// fragments divides n octets.
func fragments(n, most int) (sizes []int) {
	for most > 0 && n > most {
		sizes = append(sizes, most)
		n -= most
	}
	return append(sizes, n)
}

// serve is the peer on a connection. It reads until the other side has closed it.
func (p *strictPeer) serve(c net.Conn, in *bufio.Reader) {
	defer c.Close()
	buf := make([]byte, 64<<10)
	for !p.ended {
		n, err := in.Read(buf)
		if out := p.feed(buf[:n]); len(out) > 0 {
			c.Write(out)
		}
		if err != nil {
			return
		}
	}
	closing.Write(c)
	c.SetReadDeadline(time.Now().Add(patience))
	io.Copy(io.Discard, in)
}

// deflater compresses messages (RFC 7692, 7.2.1).
type deflater struct {
	w        *flate.Writer
	buf      bytes.Buffer
	takeover bool // of the context
}

// newDeflater returns a deflater. A window of less than 2^15 octets leaves no repetition.
func newDeflater(takeover, small bool) *deflater {
	d := &deflater{takeover: takeover}
	level := flate.BestSpeed
	if small {
		level = flate.HuffmanOnly
	}
	d.w, _ = flate.NewWriter(&d.buf, level) // the level is valid
	return d
}

func (d *deflater) message(b []byte) []byte {
	d.buf.Reset()
	if !d.takeover {
		d.w.Reset(&d.buf)
	}
	d.w.Write(b)
	d.w.Flush()
	out := bytes.TrimSuffix(d.buf.Bytes(), []byte{0, 0, 0xff, 0xff})
	return append([]byte(nil), out...)
}

// inflater decompresses messages (RFC 7692, 7.2.2). It keeps the context, which a sender
// need not use.
type inflater struct{ window []byte }

func (i *inflater) message(b []byte) ([]byte, error) {
	tail := []byte{0, 0, 0xff, 0xff, 1, 0, 0, 0xff, 0xff} // and a last, empty block
	plain, err := io.ReadAll(flate.NewReaderDict(io.MultiReader(bytes.NewReader(b), bytes.NewReader(tail)), i.window))
	i.window = append(i.window, plain...)
	i.window = append([]byte(nil), i.window[max(0, len(i.window)-1<<15):]...)
	return plain, err
}
