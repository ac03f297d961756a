package relay

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/test/serve"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is a deadline against hanging, not an expectation.
const patience = 20 * time.Second

// startRelay runs a relay until the test ends, or until the returned stop.
func startRelay(t testing.TB) (r *Relay, stop func()) {
	t.Helper()
	r = New(2)
	ctx, cancel := context.WithCancel(context.Background())
	if err := r.Open(); err != nil {
		t.Fatal(err)
	}
	end := make(chan error, 1)
	go func() { end <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-end:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(patience):
			t.Error("Run does not return")
		}
	})
	t.Cleanup(stop)
	return r, stop
}

// tcpPair is two ends of a connection over loopback.
func tcpPair(t testing.TB) (a, b *net.TCPConn) {
	t.Helper()
	a, b = serve.Pair(t)
	for _, c := range []net.Conn{a, b} {
		c.SetDeadline(time.Now().Add(patience))
	}
	return a, b
}

// stream is a connection that can be half closed.
type stream interface {
	net.Conn
	CloseWrite() error
}

// kinds are the two implementations of a pair.
var kinds = map[string]func(t testing.TB) (outer, inner stream){
	"sockets": func(t testing.TB) (outer, inner stream) { return first(tcpPair(t)) },
	"tls":     tlsPair,
}

func first(a, b *net.TCPConn) (stream, stream) { return a, b }

func tlsPair(t testing.TB) (outer, inner stream) {
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS()
	cert := s.TLS.Certificates[0]
	s.Close()
	a, b := tcpPair(t)
	client := tls.Client(a, &tls.Config{InsecureSkipVerify: true})
	server := tls.Server(b, &tls.Config{Certificates: []tls.Certificate{cert}})
	done := make(chan error, 1)
	go func() { done <- client.Handshake() }()
	if err := errors.Join(server.Handshake(), <-done); err != nil {
		t.Fatal(err)
	}
	server.SetDeadline(time.Time{})
	return client, server
}

// ends are the outer ends of a relayed pair.
type ends struct {
	client   stream // the end of the user's browser
	upstream stream // the end of the session's server
	left     chan struct{}
	done     chan struct{}
}

// add relays between two new connections. change may alter the spec.
func add(t testing.TB, r *Relay, kind string, change func(*Spec)) ends {
	t.Helper()
	outer, inner := kinds[kind](t)
	up, server := tcpPair(t)
	e := ends{outer, server, make(chan struct{}), make(chan struct{})}
	s := Spec{Client: inner, Upstream: up, Left: e.left, Done: func() { close(e.done) }}
	if change != nil {
		change(&s)
	}
	up.SetDeadline(time.Time{})
	if err := r.Add(s); err != nil {
		t.Fatal(err)
	}
	return e
}

func webSocket(s *Spec) { s.WebSocket = true }

func (e ends) awaitDone(t *testing.T) {
	t.Helper()
	select {
	case <-e.done:
	case <-time.After(patience):
		t.Fatal("Done is not called")
	}
}

func eachKind(t *testing.T, f func(t *testing.T, kind string)) {
	for kind := range kinds {
		t.Run(kind, func(t *testing.T) { f(t, kind) })
	}
}

func readAll(t *testing.T, c net.Conn) []byte {
	t.Helper()
	b, err := io.ReadAll(c)
	if err != nil {
		t.Errorf("read: %v", err)
	}
	return b
}

func write(t *testing.T, c net.Conn, b []byte) {
	t.Helper()
	if _, err := c.Write(b); err != nil {
		t.Errorf("write: %v", err)
	}
}

func readFull(t *testing.T, c net.Conn, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil {
		t.Fatalf("read: %v", err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("got %.40q, want %.40q", got, want)
	}
}

func random(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	r.Read(b)
	return b
}

func TestEarlyBytesComeFirst(t *testing.T) {
	r, _ := startRelay(t)
	eachKind(t, func(t *testing.T, kind string) {
		e := add(t, r, kind, func(s *Spec) {
			s.ToClient, s.ToUpstream = []byte("early from server,"), []byte("early from client,")
		})
		write(t, e.client, []byte("late from client"))
		write(t, e.upstream, []byte("late from server"))
		readFull(t, e.client, []byte("early from server,late from server"))
		readFull(t, e.upstream, []byte("early from client,late from client"))
		e.client.Close()
		e.upstream.Close()
		e.awaitDone(t)
	})
}

// A half close reaches the other side, and the opposite direction stays open.
func TestHalfCloseIsPassedOn(t *testing.T) {
	r, _ := startRelay(t)
	eachKind(t, func(t *testing.T, kind string) {
		for _, clientFirst := range []bool{true, false} {
			e := add(t, r, kind, nil)
			a, b := e.client, e.upstream
			if !clientFirst {
				a, b = b, a
			}
			write(t, a, []byte("question"))
			a.CloseWrite()
			if got := readAll(t, b); string(got) != "question" {
				t.Errorf("got %q", got)
			}
			answer := random(1, 300_000)
			go func() {
				b.Write(answer)
				b.CloseWrite()
			}()
			if got := readAll(t, a); !bytes.Equal(got, answer) {
				t.Errorf("got %d bytes of %d", len(got), len(answer))
			}
			e.awaitDone(t)
		}
	})
}

// Many pairs transfer megabytes in both directions at once, in odd pieces and with slow
// readers. Every byte arrives, in order.
func TestNothingIsLost(t *testing.T) {
	size, pairs := 4<<20, 20
	if testing.Short() {
		size, pairs = 1<<20, 6
	}
	r, _ := startRelay(t)
	eachKind(t, func(t *testing.T, kind string) {
		var wg sync.WaitGroup
		for i := range pairs {
			e := add(t, r, kind, nil)
			for j, dir := range [][2]stream{{e.client, e.upstream}, {e.upstream, e.client}} {
				data := random(uint64(i*2+j), size)
				wg.Go(func() { writePieces(t, dir[0], data, uint64(i)) })
				wg.Go(func() { readPieces(t, dir[1], data, uint64(i)) })
			}
			wg.Go(func() { e.awaitDone(t) })
		}
		wg.Wait()
	})
}

func writePieces(t *testing.T, c stream, data []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for len(data) > 0 {
		n := min(len(data), 1+r.IntN(1<<(4+r.IntN(16))))
		if _, err := c.Write(data[:n]); err != nil {
			t.Errorf("write: %v", err)
			return
		}
		data = data[n:]
	}
	c.CloseWrite()
}

func readPieces(t *testing.T, c stream, want []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 2))
	buf := make([]byte, 200_000)
	for pos := 0; ; {
		n, err := c.Read(buf[:1+r.IntN(len(buf))])
		if !bytes.Equal(buf[:n], want[pos:min(len(want), pos+n)]) {
			t.Errorf("bytes from %d on differ", pos)
			return
		}
		if pos += n; err != nil {
			if err != io.EOF || pos != len(want) {
				t.Errorf("after %d of %d bytes: %v", pos, len(want), err)
			}
			return
		}
		if r.IntN(20) == 0 {
			time.Sleep(time.Duration(r.IntN(2000)) * time.Microsecond) // a slow reader
		}
	}
}

// A reader that does not read blocks its writer. All bytes arrive when it reads.
func TestSlowReaderHoldsWriterBack(t *testing.T) {
	r, _ := startRelay(t)
	eachKind(t, func(t *testing.T, kind string) {
		e := add(t, r, kind, nil)
		const most = 256 << 20 // the buffers on the way are far smaller
		block := random(3, 1<<16)
		sent := 0
		for sent < most {
			e.upstream.SetWriteDeadline(time.Now().Add(time.Second))
			n, err := e.upstream.Write(block)
			sent += n
			if err != nil {
				break
			}
		}
		if sent == most {
			t.Fatalf("%d bytes were sent and not read", sent)
		}
		e.upstream.CloseWrite()
		got := readAll(t, e.client)
		if len(got) != sent {
			t.Fatalf("%d bytes arrived of %d", len(got), sent)
		}
		for i := 0; i < len(got); i += len(block) {
			if n := min(len(block), len(got)-i); !bytes.Equal(got[i:i+n], block[:n]) {
				t.Fatalf("block at %d differs", i)
			}
		}
		e.client.Close()
		e.awaitDone(t)
	})
}

// A reset of one side ends the other side.
func TestResetEndsBothSides(t *testing.T) {
	r, _ := startRelay(t)
	eachKind(t, func(t *testing.T, kind string) {
		for _, client := range []bool{true, false} {
			e := add(t, r, kind, nil)
			write(t, e.client, []byte("a"))
			readFull(t, e.upstream, []byte("a"))
			victim, other := e.client, e.upstream
			if !client {
				victim, other = other, victim
			}
			reset(t, victim)
			io.Copy(io.Discard, other) // ends, with or without an error
			other.Close()
			e.awaitDone(t)
		}
	})
}

func reset(t *testing.T, c net.Conn) {
	t.Helper()
	if tc, ok := c.(*tls.Conn); ok {
		c = tc.NetConn()
	}
	c.(*net.TCPConn).SetLinger(0)
	c.Close()
}

func TestAddIsRefusedWhenNotRunning(t *testing.T) {
	r, stop := startRelay(t)
	stop()
	eachKind(t, func(t *testing.T, kind string) {
		outer, inner := kinds[kind](t)
		up, server := tcpPair(t)
		err := r.Add(Spec{Client: inner, Upstream: up, Done: func() { t.Error("Done was called") }})
		if !errors.Is(err, ErrClosed) {
			t.Errorf("err %v", err)
		}
		if got := readAll(t, server); len(got) != 0 {
			t.Errorf("got %q", got)
		}
		if n, err := outer.Read(make([]byte, 1)); err == nil {
			t.Errorf("read %d bytes", n)
		}
	})
}
