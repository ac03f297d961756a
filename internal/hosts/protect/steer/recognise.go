package steer

import (
	"bytes"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/hosts/protect"
	"holdfast/internal/platform/linux/sockdiag"
)

// recogniseLimit is how long a server may take for its answer.
const recogniseLimit = 500 * time.Millisecond

// recognise asks a server whether it speaks QUIC: a packet of a version that is reserved to
// force version negotiation is answered with a list of versions (RFC 9000, section 6).
func recognise(ls []sockdiag.Listener) protect.Flows {
	var quic atomic.Bool
	var asking sync.WaitGroup
	for _, l := range ls {
		asking.Go(func() {
			if speaksQUIC(l) {
				quic.Store(true)
			}
		})
	}
	asking.Wait()
	if quic.Load() {
		return protect.ByConnection
	}
	return protect.ByAddress
}

// question is a long header of the reserved version 0x1a2a3a4a, with the ids "holdfast" and
// "question", in a packet of the smallest size that a server answers.
func question() []byte {
	b := make([]byte, 1200)
	copy(b, "\xc0\x1a\x2a\x3a\x4a\x08holdfast\x08question")
	return b
}

// answer is its beginning behind the flags: version 0, and the ids in the other order.
const answer = "\x00\x00\x00\x00\x08question\x08holdfast"

func speaksQUIC(l sockdiag.Listener) bool {
	// The unspecified address is this host, as it is for connect(2).
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(l.Addr))
	if err != nil {
		return false
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(recogniseLimit))
	if _, err := c.Write(question()); err != nil {
		return false
	}
	b := make([]byte, 1500)
	n, err := c.Read(b)
	return err == nil && n > len(answer) && b[0] >= 0x80 && bytes.HasPrefix(b[1:n], []byte(answer))
}
