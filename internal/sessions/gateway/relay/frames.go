package relay

import (
	"holdfast/internal/sessions/gateway/closing"
	"holdfast/internal/sessions/gateway/frame"
)

// frames follows the WebSocket frames of a byte stream (RFC 6455, 5.2). It
// tells whether the stream is between two frames, and whether a Close frame has
// begun. The zero value is at the start of a stream.
type frames struct {
	head     [frame.MaxHeader]byte // incomplete header of a frame
	have     int8                  // bytes in head
	sawClose bool
	payload  uint64 // bytes of the current frame's payload still to come
}

// closeRestart is the Close frame that tells a client that its session left.
func closeRestart() []byte { return frame.Closing(closing.Restart) }

// between reports whether the next byte starts a frame.
func (f *frames) between() bool { return f.have == 0 && f.payload == 0 }

// controls reports whether b consists of whole Pings and Pongs, and returns the answers.
func (f *frames) controls(b []byte) (pongs []byte, ok bool) {
	if !f.between() {
		return nil, false
	}
	return frame.Controls(b)
}

// feed follows the next bytes of the stream.
func (f *frames) feed(b []byte) {
	for len(b) > 0 {
		if f.payload > 0 {
			n := min(f.payload, uint64(len(b)))
			f.payload -= n
			b = b[n:]
			continue
		}
		n := copy(f.head[f.have:], b)
		h, ok := frame.Parse(f.head[:int(f.have)+n])
		if !ok { // a full head always holds a whole header, so b is used up
			f.have += int8(n)
			return
		}
		b = b[h.Size-int(f.have):]
		f.have, f.payload = 0, h.Length
		f.sawClose = f.sawClose || h.Op() == frame.Close
	}
}
