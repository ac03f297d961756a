package reattach

import (
	"encoding/binary"
	"math"
)

// Opcodes (RFC 6455, 5.2 and 11.8).
const (
	opText  = 0x1
	opClose = 0x8
	opPing  = 0x9
	opPong  = 0xa
	// opEnd is a reserved control opcode. Between gateways it means that the
	// server itself ended the connection.
	opEnd = 0xb
)

const fin = 0x80 // bit of a frame's first byte: the last frame of its message

// maxControl is the maximum payload of a control frame in bytes (RFC 6455,
// 5.5).
const maxControl = 125

// maxHeader is the longest header of a frame in bytes: two bytes, the length,
// the key.
const maxHeader = 2 + 8 + 4

// frame is the header of a WebSocket frame (RFC 6455, 5.2).
type frame struct {
	first  byte // FIN, RSV and opcode
	masked bool
	key    [4]byte
	header int    // bytes
	length uint64 // of the payload, in bytes
}

func (f frame) op() byte      { return f.first & 0x0f }
func (f frame) control() bool { return f.first&0x08 != 0 }

// last reports whether a data frame ends its message.
func (f frame) last() bool { return f.first&fin != 0 }

// size returns the size of the whole frame in bytes, at most math.MaxInt.
func (f frame) size() int {
	if f.length > math.MaxInt-maxHeader {
		return math.MaxInt
	}
	return f.header + int(f.length)
}

// parse reads the header of the frame at the start of b. It returns false if
// the header is incomplete.
func parse(b []byte) (f frame, ok bool) {
	if len(b) < 2 {
		return frame{}, false
	}
	f = frame{first: b[0], masked: b[1]&0x80 != 0, header: 2, length: uint64(b[1] & 0x7f)}
	extended := 0
	switch f.length {
	case 126:
		extended = 2
	case 127:
		extended = 8
	}
	f.header += extended
	if f.masked {
		f.header += len(f.key)
	}
	if len(b) < f.header {
		return frame{}, false
	}
	switch extended {
	case 2:
		f.length = uint64(binary.BigEndian.Uint16(b[2:]))
	case 8:
		f.length = binary.BigEndian.Uint64(b[2:])
	}
	if f.masked {
		copy(f.key[:], b[2+extended:])
	}
	return f, true
}

// frames calls do for each frame of b, which contains whole frames only.
func frames(b []byte, do func(f frame, all []byte)) {
	for len(b) > 0 {
		f, ok := parse(b)
		if !ok || f.size() > len(b) {
			return // impossible: see reader
		}
		do(f, b[:f.size()])
		b = b[f.size():]
	}
}

// payload returns an unmasked copy of a frame's payload.
func (f frame) payload(all []byte) []byte {
	p := append([]byte(nil), all[f.header:]...)
	if f.masked {
		for i := range p {
			p[i] ^= f.key[i%len(f.key)]
		}
	}
	return p
}

// serverFrame returns a frame as a server sends it: final and unmasked. The
// payload of a control frame is cut to maxControl.
func serverFrame(op byte, payload []byte) []byte {
	n := len(payload)
	if op&0x08 != 0 {
		n = min(n, maxControl)
	}
	b := []byte{fin | op}
	switch {
	case n <= maxControl:
		b = append(b, byte(n))
	case n <= math.MaxUint16:
		b = binary.BigEndian.AppendUint16(append(b, 126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 127), uint64(n))
	}
	return append(b, payload[:n]...)
}

// closeFrame returns an unmasked Close frame with a status code and no reason.
func closeFrame(code uint16) []byte {
	return serverFrame(opClose, binary.BigEndian.AppendUint16(nil, code))
}
