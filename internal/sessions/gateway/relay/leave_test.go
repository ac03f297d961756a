package relay

import (
	"bytes"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// serverFrame returns an unmasked frame as a server sends it.
func serverFrame(op byte, payload []byte) []byte {
	b := []byte{0x80 | op}
	switch n := len(payload); {
	case n < 126:
		b = append(b, byte(n))
	case n < 1<<16:
		b = append(b, 126, byte(n>>8), byte(n))
	default:
		b = append(b, 127, 0, 0, 0, 0, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
	return append(b, payload...)
}

var (
	hello   = serverFrame(1, []byte("hello"))
	restart = closeRestart()
)

func TestLeaveSendsServiceRestart(t *testing.T) {
	long := serverFrame(2, random(5, 100_000))
	cases := map[string]struct {
		socket bool
		said   []byte // by the server before it leaves
		want   []byte
	}{
		"nothing said":        {true, nil, restart},
		"between frames":      {true, hello, join(hello, restart)},
		"after a long frame":  {true, long, join(long, restart)},
		"inside a header":     {true, long[:4], long[:4]},
		"inside a payload":    {true, long[:50_000], long[:50_000]},
		"after a close frame": {true, serverFrame(8, []byte{3, 232}), serverFrame(8, []byte{3, 232})},
		"no WebSocket":        {false, hello, hello},
	}
	r, _ := startRelay(t)
	eachKind(t, func(t *testing.T, kind string) {
		for name, c := range cases {
			t.Run(name, func(t *testing.T) {
				e := add(t, r, kind, func(s *Spec) { s.WebSocket = c.socket })
				write(t, e.upstream, c.said)
				readFull(t, e.client, c.said)
				write(t, e.client, []byte("unread by the server"))
				close(e.left)
				if got := readAll(t, e.client); !bytes.Equal(got, c.want[len(c.said):]) {
					t.Errorf("got %x", got)
				}
				e.client.Close()
				e.awaitDone(t)
			})
		}
	})
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// The bytes that the server sent before the session left are delivered before 1012, even
// if they were unread until then.
func TestLastBytesComeBeforeServiceRestart(t *testing.T) {
	said := bytes.Repeat(hello, 2000)
	begin := map[string]func(t *testing.T, s Spec){
		"sockets": func(t *testing.T, s Spec) { // the session leaves before the loop has run
			l := &loop{ended: func(pair, Spec) { s.Done() }}
			if err := l.open(); err != nil {
				t.Fatal(err)
			}
			p, err := newSocketPair(l, s.Client.(*net.TCPConn), s.Upstream.(*net.TCPConn), s)
			if err != nil {
				t.Fatal(err)
			}
			p.start()
			p.beginClose()
			l.stop()
			go l.run()
		},
		"tls": func(_ *testing.T, s Spec) {
			p := newCopyPair(s, &sync.Pool{New: func() any { return new([bufferSize]byte) }})
			p.leave()
			go func() { p.run(); s.Done() }()
		},
	}
	eachKind(t, func(t *testing.T, kind string) {
		outer, inner := kinds[kind](t)
		up, server := tcpPair(t)
		up.SetDeadline(time.Time{})
		write(t, server, said)
		e := ends{client: outer, done: make(chan struct{})}
		begin[kind](t, Spec{Client: inner, Upstream: up, WebSocket: true, Done: func() { close(e.done) }})
		if got := readAll(t, outer); !bytes.Equal(got, join(said, restart)) {
			t.Errorf("got %d bytes of %d, the last are %x", len(got), len(said)+len(restart), got[max(0, len(got)-8):])
		}
		outer.Close()
		e.awaitDone(t)
	})
}

// byHand returns a pair whose loop the test runs step by step.
func byHand(t *testing.T) (p *socketPair, client, server *net.TCPConn) {
	t.Helper()
	l := &loop{ended: func(pair, Spec) {}}
	if err := l.open(); err != nil {
		t.Fatal(err)
	}
	client, inner := tcpPair(t)
	up, server := tcpPair(t)
	p, err := newSocketPair(l, inner, up, Spec{WebSocket: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.close(); l.close() })
	p.start()
	return p, client, server
}

// drained fails the test unless the pair is open and all bytes of the client are read.
// Closing a socket with unread bytes sends a reset, which may overtake the Close frame
// (RFC 9293, 3.10.4; RFC 2525, 2.17).
func drained(t *testing.T, p *socketPair) {
	t.Helper()
	for len(p.loop.queue) > 0 {
		p.loop.runQueue()
	}
	if p.closed {
		t.Fatal("the pair was closed at once")
	}
	if n, err := unix.IoctlGetInt(p.client.fd, unix.SIOCINQ); err != nil || n != 0 || len(p.client.pending) != 0 {
		t.Errorf("%d bytes unread, %d held, %v", n, len(p.client.pending), err)
	}
}

func TestLeaveDrainsClientOfStuckServer(t *testing.T) {
	p, client, _ := byHand(t)
	for block := make([]byte, 1<<16); len(p.client.pending) == 0 || p.upstream.writable; {
		write(t, client, block)
		p.client.readable = true
		p.client.pump()
	}
	write(t, client, make([]byte, 1<<16))
	p.beginClose()
	drained(t, p)
}

func TestLeaveDrainsClientOfKilledServer(t *testing.T) {
	p, client, server := byHand(t)
	reset(t, server)
	write(t, client, []byte("refused"))
	for !p.client.done { // the kernel may still accept the first bytes
		p.client.readable = true
		p.client.pump()
		write(t, client, []byte("refused, too"))
	}
	p.upstream.readable = true
	p.upstream.pump()
	if !p.awaiting {
		t.Fatal("the pair does not wait for the signal that the session left")
	}
	p.beginClose()
	drained(t, p)
}

// The kernel reports a killed server before the signal that the session left arrives.
func TestKilledServerIsServiceRestart(t *testing.T) {
	r, _ := startRelay(t)
	eachKind(t, func(t *testing.T, kind string) {
		for name, kill := range map[string]func(net.Conn){
			"end":   func(c net.Conn) { c.Close() },
			"reset": func(c net.Conn) { reset(t, c) },
		} {
			t.Run(name, func(t *testing.T) {
				e := add(t, r, kind, webSocket)
				write(t, e.upstream, hello)
				readFull(t, e.client, hello)
				kill(e.upstream)
				for range 8 { // the first write fails, and the rest stays unread
					write(t, e.client, random(9, 1<<15))
				}
				close(e.left)
				if got := readAll(t, e.client); !bytes.Equal(got, restart) {
					t.Errorf("got %x", got)
				}
				e.client.Close()
				e.awaitDone(t)
			})
		}
	})
}

// If the session has not left, the end of the server is passed on unchanged.
func TestEndedServerIsAnEnd(t *testing.T) {
	r, _ := startRelay(t)
	eachKind(t, func(t *testing.T, kind string) {
		e := add(t, r, kind, webSocket)
		write(t, e.upstream, hello)
		e.upstream.Close()
		if got := readAll(t, e.client); !bytes.Equal(got, hello) {
			t.Errorf("got %x", got)
		}
		e.client.Close()
		e.awaitDone(t)
	})
}

// If the session left before its pair was added, the client still receives 1012.
func TestLeftBeforeAdd(t *testing.T) {
	r, _ := startRelay(t)
	eachKind(t, func(t *testing.T, kind string) {
		left := make(chan struct{})
		close(left)
		e := add(t, r, kind, func(s *Spec) { s.WebSocket, s.Left = true, left })
		if got := readAll(t, e.client); !bytes.Equal(got, restart) {
			t.Errorf("got %x", got)
		}
		e.client.Close()
		e.awaitDone(t)
	})
}

// A client that neither reads nor hangs up does not keep the pair open.
func TestLeaveDoesNotWaitForStuckClient(t *testing.T) {
	r, _ := startRelay(t)
	eachKind(t, func(t *testing.T, kind string) {
		e := add(t, r, kind, webSocket)
		go io.Copy(e.upstream, endless{}) // ends when the pair is closed
		readFull(t, e.client, make([]byte, 1000))
		close(e.left)
		e.awaitDone(t)
	})
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// A stop of the relay ends all pairs and calls every Done.
func TestStopEndsAllPairs(t *testing.T) {
	r, stop := startRelay(t)
	var all []ends
	for kind := range kinds {
		for range 50 {
			all = append(all, add(t, r, kind, webSocket))
		}
	}
	var wg sync.WaitGroup
	for _, e := range all {
		wg.Go(func() {
			if got := readAll(t, e.client); !bytes.Equal(got, restart) {
				t.Errorf("got %x", got)
			}
			e.client.Close()
		})
	}
	stop()
	for _, e := range all {
		select {
		case <-e.done:
		default:
			t.Fatal("Run returned before Done")
		}
	}
	wg.Wait()
}

// frames finds the boundaries of a generated stream of frames, for pieces of any size.
func TestFramesKnowBoundaries(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var stream []byte
		boundary := map[int]bool{0: true}
		closeAt := -1
		for range rapid.IntRange(1, 8).Draw(t, "frames") {
			op := rapid.SampledFrom([]byte{0, 1, 2, 8, 9, 10}).Draw(t, "op")
			n := rapid.SampledFrom([]int{0, 1, 125, 126, 127, 1000, 65535, 65536, 70000}).Draw(t, "len")
			f := serverFrame(op, make([]byte, n))
			if rapid.Bool().Draw(t, "masked") {
				head := len(f) - n
				f[1] |= 0x80
				f = join(f[:head], []byte{1, 2, 3, 4}, f[head:])
			}
			stream = append(stream, f...)
			boundary[len(stream)] = true
			if op == 8 && closeAt < 0 {
				closeAt = len(stream)
			}
		}
		var f frames
		for pos := 0; pos < len(stream); {
			n := rapid.IntRange(1, min(len(stream)-pos, rapid.SampledFrom([]int{3, 20, 100_000}).Draw(t, "most"))).Draw(t, "piece")
			f.feed(stream[pos : pos+n])
			pos += n
			if f.between() != boundary[pos] {
				t.Fatalf("at %d: between is %v", pos, f.between())
			}
			if closeAt >= 0 && pos >= closeAt && !f.sawClose {
				t.Fatalf("at %d: missed the close frame", pos)
			}
		}
	})
}

func FuzzFrames(f *testing.F) {
	f.Add(hello, uint8(1))
	f.Add(restart, uint8(3))
	f.Fuzz(func(t *testing.T, b []byte, cut uint8) {
		var whole, parts frames
		whole.feed(b)
		n := min(int(cut), len(b))
		parts.feed(b[:n])
		parts.feed(b[n:])
		if whole.between() != parts.between() || whole.sawClose != parts.sawClose || whole.payload != parts.payload {
			t.Errorf("pieces change the outcome: %+v, %+v", whole, parts)
		}
	})
}
