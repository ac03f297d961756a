package relay

import "encoding/binary"

// frames follows the WebSocket frames of a byte stream (RFC 6455, 5.2). It
// tells whether the stream is between two frames, and whether a Close frame has
// begun. The zero value is at the start of a stream.
type frames struct {
	head     [14]byte // incomplete header of a frame
	have     int8     // bytes in head
	sawClose bool
	payload  uint64 // bytes of the current frame's payload still to come
}

const opClose = 0x8

// closeRestart is an unmasked Close frame with code 1012, service restart (IANA
// WebSocket Close Code Number Registry).
var closeRestart = [4]byte{0x80 | opClose, 2, 1012 >> 8, 1012 & 0xff}

// between reports whether the next byte starts a frame.
func (f *frames) between() bool { return f.have == 0 && f.payload == 0 }

// feed follows the next bytes of the stream.
func (f *frames) feed(b []byte) {
	for len(b) > 0 {
		if f.payload > 0 {
			n := min(f.payload, uint64(len(b)))
			f.payload -= n
			b = b[n:]
			continue
		}
		n := copy(f.head[f.have:f.headLen()], b)
		f.have += int8(n)
		b = b[n:]
		// The second byte tells the full length of the header.
		if int(f.have) == f.headLen() {
			f.begin()
		}
	}
}

// headLen is the length of the header in head as far as it is known.
func (f *frames) headLen() int {
	if f.have < 2 {
		return 2
	}
	n := 2
	switch f.head[1] & 0x7f {
	case 126:
		n += 2
	case 127:
		n += 8
	}
	if f.head[1]&0x80 != 0 {
		n += 4 // masking key
	}
	return n
}

// begin processes a complete header.
func (f *frames) begin() {
	switch n := f.head[1] & 0x7f; n {
	case 126:
		f.payload = uint64(binary.BigEndian.Uint16(f.head[2:]))
	case 127:
		f.payload = binary.BigEndian.Uint64(f.head[2:])
	default:
		f.payload = uint64(n)
	}
	if f.head[0]&0x0f == opClose {
		f.sawClose = true
	}
	f.have = 0
}
