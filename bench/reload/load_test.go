package reload

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"
)

const good = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + pong

// serve has a real server do something with each connection, once the request is
// in.
func serve(t *testing.T, each func(net.Conn)) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				b := make([]byte, 512)
				if n, err := c.Read(b); err != nil || !strings.HasSuffix(string(b[:n]), "\r\n\r\n") {
					return
				}
				each(c)
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func answer(text string) func(net.Conn) {
	return func(c net.Conn) { _, _ = io.WriteString(c, text) }
}

// times has n clients come.
func times(n int) func(int) bool { return func(begun int) bool { return begun < n } }

func TestLoadTellsWhyItFailed(t *testing.T) {
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	for name, c := range map[string]struct {
		to   netip.AddrPort
		want reason
	}{
		"answered":           {serve(t, answer(good)), fine},
		"no process listens": {gone.Addr().(*net.TCPAddr).AddrPort(), refused},
		"closed at once":     {serve(t, func(net.Conn) {}), noAnswer},
		"an error":           {serve(t, answer("HTTP/1.1 503 Service Unavailable\r\n\r\n")), wrongStatus},
		"another answer":     {serve(t, answer("HTTP/1.1 200 OK\r\n\r\npang\n")), wrongAnswer},
		"cut short":          {serve(t, answer(good[:len(good)-2])), wrongAnswer},
		"without an end":     {serve(t, answer(good+strings.Repeat("x", 1000))), wrongAnswer},
		"reset":              {serve(t, func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) }), reset},
		"reset half-way":     {serve(t, func(c net.Conn) { answer(good[:20])(c); _ = c.(*net.TCPConn).SetLinger(0) }), reset},
		"no answer":          {serve(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }), tooLate},
		"half, then none":    {serve(t, func(c net.Conn) { answer(good[:20])(c); _, _ = io.Copy(io.Discard, c) }), tooLate},
	} {
		t.Run(name, func(t *testing.T) {
			limit := time.Minute
			if c.want == tooLate {
				limit = 50 * time.Millisecond
			}
			for _, rate := range []float64{0, 500} {
				rec, err := load{to: c.to, answer: pong, rate: rate, conns: 4, limit: limit, more: times(12)}.run(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				n, by := rec.failed()
				want := map[string]int{}
				if c.want != fine {
					want[c.want.String()] = 12
				}
				if len(rec.requests) != 12 || !maps.Equal(by, want) || n != want[c.want.String()] {
					t.Errorf("rate %g: %d requests, %d failed: %v, want %v", rate, len(rec.requests), n, by, want)
				}
			}
		})
	}
}

// A client that is due while the server stands still waits from then, also where no
// connection is free for it.
func TestWaitsCountFromWhenDue(t *testing.T) {
	const n, rate, conns = 60, 300.0, 20
	dueAt := func(i int) uint32 { return micros(time.Duration(float64(i) / rate * float64(time.Second))) }
	var mu sync.Mutex
	var seen int
	let := make(chan struct{})
	to := serve(t, func(c net.Conn) {
		mu.Lock()
		if seen++; seen == conns {
			go func() {
				time.Sleep(n * time.Second / rate) // all are due by then
				close(let)
			}()
		}
		mu.Unlock()
		<-let
		answer(good)(c)
	})
	rec, err := load{to: to, answer: pong, rate: rate, conns: conns, limit: time.Minute, more: times(n)}.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if failed, by := rec.failed(); failed != 0 || len(rec.requests) != n {
		t.Fatalf("%d requests, failed: %v", len(rec.requests), by)
	}
	due := map[uint32]bool{}
	for _, q := range rec.requests {
		due[q.due] = true
		// No client was answered before the last one was due.
		if q.due+q.wait < dueAt(n-1) {
			t.Errorf("due after %d µs, answered %d µs later: before the last was due", q.due, q.wait)
		}
	}
	for i := range n {
		if !due[dueAt(i)] {
			t.Errorf("no client was due after %d µs", dueAt(i))
		}
	}
}

func TestLoadEndsWithContext(t *testing.T) {
	to := serve(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	ctx, cancel := context.WithCancel(t.Context())
	begun := 0
	_, err := load{to: to, answer: pong, rate: 1000, conns: 50, limit: time.Minute, more: func(int) bool {
		if begun++; begun == 20 {
			cancel()
		}
		return true
	}}.run(ctx)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestLoadRefusesWhatItCannot(t *testing.T) {
	for _, l := range []load{
		{to: netip.MustParseAddrPort("[::1]:1"), conns: 1},
		{to: netip.MustParseAddrPort("127.0.0.1:1"), conns: 0},
		{to: netip.MustParseAddrPort("127.0.0.1:1"), conns: maxOpen + 1},
	} {
		if _, err := l.run(t.Context()); err == nil {
			t.Errorf("%+v ran", l)
		}
	}
}
