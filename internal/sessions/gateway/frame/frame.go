// Package frame parses and makes WebSocket frames (RFC 6455, 5).
package frame

import (
	"encoding/binary"
	"math"
	"unicode/utf8"
)

// The opcodes (RFC 6455, 5.2 and 11.8).
const (
	Text  = 0x1
	Close = 0x8
	Ping  = 0x9
	Pong  = 0xa
	// End is a reserved control opcode. Between gateways it means that the
	// server itself ended the connection.
	End = 0xb
)

// Fin is the bit of a frame's first byte that marks the last frame of its message.
const Fin = 0x80

// MaxControl is the maximum payload of a control frame in bytes (RFC 6455,
// 5.5).
const MaxControl = 125

// MaxHeader is the longest header of a frame in bytes: two bytes, the length,
// the key.
const MaxHeader = 2 + 8 + 4

// Header is the header of a WebSocket frame (RFC 6455, 5.2).
type Header struct {
	First  byte // FIN, RSV and opcode
	Masked bool
	key    [4]byte
	Size   int    // of the header, in bytes
	Length uint64 // of the payload, in bytes
}

// Op returns the opcode.
func (f Header) Op() byte { return f.First & 0x0f }

// Control reports whether it is a control frame.
func (f Header) Control() bool { return f.First&0x08 != 0 }

// LegalControl reports whether it is a control frame without reserved bits that is whole
// and short enough (RFC 6455, 5.2 and 5.5).
func (f Header) LegalControl() bool {
	return f.Control() && f.First&0xf0 == Fin && f.Length <= MaxControl
}

// Last reports whether a data frame ends its message.
func (f Header) Last() bool { return f.First&Fin != 0 }

// FrameSize returns the size of the whole frame in bytes, at most math.MaxInt.
func (f Header) FrameSize() int {
	if f.Length > math.MaxInt-MaxHeader {
		return math.MaxInt
	}
	return f.Size + int(f.Length)
}

// Parse reads the header of the frame at the start of b. It returns false if
// the header is incomplete.
func Parse(b []byte) (f Header, ok bool) {
	if len(b) < 2 {
		return Header{}, false
	}
	f = Header{First: b[0], Masked: b[1]&0x80 != 0, Size: 2, Length: uint64(b[1] & 0x7f)}
	extended := 0
	switch f.Length {
	case 126:
		extended = 2
	case 127:
		extended = 8
	}
	f.Size += extended
	if f.Masked {
		f.Size += len(f.key)
	}
	if len(b) < f.Size {
		return Header{}, false
	}
	switch extended {
	case 2:
		f.Length = uint64(binary.BigEndian.Uint16(b[2:]))
	case 8:
		f.Length = binary.BigEndian.Uint64(b[2:])
	}
	if f.Masked {
		copy(f.key[:], b[2+extended:])
	}
	return f, true
}

// Each calls do for each frame of b, which contains whole frames only.
func Each(b []byte, do func(f Header, all []byte)) {
	for len(b) > 0 {
		f, ok := Parse(b)
		if !ok || f.FrameSize() > len(b) {
			return // the caller has split b between two frames
		}
		do(f, b[:f.FrameSize()])
		b = b[f.FrameSize():]
	}
}

// Controls reports whether b consists of whole, legal Pings and Pongs only, and returns
// the Pongs that answer its Pings. b begins with a frame.
func Controls(b []byte) (pongs []byte, ok bool) {
	for len(b) > 0 {
		f, whole := Parse(b)
		if op := f.Op(); !whole || f.FrameSize() > len(b) || !f.LegalControl() || op != Ping && op != Pong {
			return nil, false
		}
		all := b[:f.FrameSize()]
		if f.Op() == Ping {
			pongs = append(pongs, Server(Pong, f.Payload(all))...)
		}
		b = b[len(all):]
	}
	return pongs, true
}

// Payload returns an unmasked copy of a frame's payload.
func (f Header) Payload(all []byte) []byte {
	p := append([]byte(nil), all[f.Size:]...)
	if f.Masked {
		for i := range p {
			p[i] ^= f.key[i%len(f.key)]
		}
	}
	return p
}

// Server returns a frame as a server sends it: final and unmasked. The
// payload of a control frame is cut to MaxControl.
func Server(op byte, payload []byte) []byte {
	n := len(payload)
	if op&0x08 != 0 {
		n = min(n, MaxControl)
	}
	b := []byte{Fin | op}
	switch {
	case n <= MaxControl:
		b = append(b, byte(n))
	case n <= math.MaxUint16:
		b = binary.BigEndian.AppendUint16(append(b, 126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 127), uint64(n))
	}
	return append(b, payload[:n]...)
}

// Closing returns an unmasked Close frame with a status code and no reason.
func Closing(code uint16) []byte {
	return Server(Close, binary.BigEndian.AppendUint16(nil, code))
}

// CloseAnswer returns the Close frame that answers one with this payload (RFC 6455, 5.5.1
// and 7.4): with the same status code, with 1002 if no endpoint may send that, or with
// 1007 if the reason is not UTF-8.
func CloseAnswer(payload []byte) []byte {
	if len(payload) == 0 {
		return Server(Close, nil)
	}
	if len(payload) == 1 {
		return Closing(1002)
	}
	code := binary.BigEndian.Uint16(payload)
	switch {
	case code < 1000, code >= 1004 && code <= 1006, code >= 1015 && code < 3000, code >= 5000:
		code = 1002
	case !utf8.Valid(payload[2:]):
		code = 1007
	}
	return Closing(code)
}
