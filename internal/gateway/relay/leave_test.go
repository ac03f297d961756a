package relay

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// frame is an unmasked frame as a server sends it.
func frame(op byte, payload []byte) []byte {
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
	hello   = frame(1, []byte("hello"))
	restart = closeRestart[:]
)

func TestLeaveSendsServiceRestart(t *testing.T) {
	long := frame(2, random(5, 100_000))
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
		"after a close frame": {true, frame(8, []byte{3, 232}), frame(8, []byte{3, 232})},
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

// What the server had said when the session left is delivered before 1012,
// whether the client had read so far or not.
func TestLastWordsComeBeforeServiceRestart(t *testing.T) {
	r, _ := startRelay(t)
	eachKind(t, func(t *testing.T, kind string) {
		for range 20 {
			e := add(t, r, kind, webSocket)
			said := bytes.Repeat(hello, 1+rand.IntN(3000))
			write(t, e.upstream, said)
			close(e.left)
			got := readAll(t, e.client)
			if !bytes.HasSuffix(got, restart) || !bytes.HasPrefix(said, got[:len(got)-len(restart)]) {
				t.Fatalf("got %d bytes that end in %x", len(got), got[max(0, len(got)-8):])
			}
			e.client.Close()
			e.awaitDone(t)
		}
	})
}

// A killed server is seen by the kernel before the session is known to leave.
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
				write(t, e.client, []byte("anybody there?"))
				write(t, e.client, []byte("hello?"))
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

// Where the session did not leave, a server's end is passed on as it is.
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

// A session that left before its pair was added still says goodbye.
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

// A client that neither reads nor hangs up does not keep the pair.
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

// Stopping the relay lets all pairs leave and calls every Done.
func TestStopLetsEverybodyLeave(t *testing.T) {
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

// frames agrees with a stream that was put together frame by frame, whatever
// the pieces it is fed in.
func TestFramesKnowBoundaries(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var stream []byte
		boundary := map[int]bool{0: true}
		closeAt := -1
		for range rapid.IntRange(1, 8).Draw(t, "frames") {
			op := rapid.SampledFrom([]byte{0, 1, 2, 8, 9, 10}).Draw(t, "op")
			n := rapid.SampledFrom([]int{0, 1, 125, 126, 127, 1000, 65535, 65536, 70000}).Draw(t, "len")
			f := frame(op, make([]byte, n))
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
