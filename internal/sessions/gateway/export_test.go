package gateway

import (
	"context"
	"io"
	"net"
	"testing"

	"github.com/coder/websocket"

	"holdfast"
	"holdfast/internal/platform/linux/connfd"
	"holdfast/internal/sessions/gateway/closing"
	"holdfast/test/poll"
)

// follow starts the next gateway, which serves the same sessions. It returns how many
// connections of f continue there. f has ended.
func (f *fixture) follow(change func(*Config)) (next *fixture, served int) {
	f.t.Helper()
	next = start(f.t, nil, change)
	next.left = f.left
	f.sessions.mu.Lock()
	acquire := f.sessions.acquire
	f.sessions.mu.Unlock()
	next.sessions.set(acquire)
	conns := f.gateway.Export()
	// The goroutine of a TCP connection releases its session after Export.
	poll.Until(f.t, "no session is held after Export", func() bool { held, _ := f.sessions.count(); return held == 0 })
	f.stop()
	return next, next.gateway.Import(f.t.Context(), conns)
}

// servedBy routes each session to the first life that has not ended. Its epoch is the life's
// number.
func (f *fixture) servedBy(keep func(holdfast.SessionKey) *holdfast.KeepSockets, lives ...*life) {
	f.sessions.set(func(_ context.Context, key holdfast.SessionKey) (holdfast.Route, error) {
		for i, l := range lives {
			if !closing.Closed(l.left) {
				return l.route(key, holdfast.Epoch(i+1), keep(key)), nil
			}
		}
		return holdfast.Route{}, holdfast.ErrStopped
	})
}

// socketOf opens a WebSocket of a session.
func (f *fixture) socketOf(key string) *websocket.Conn {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	c, _, err := websocket.Dial(ctx, "ws://"+f.addr+"/s/"+key+"/ws?a=b", &websocket.DialOptions{HTTPClient: f.client})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { c.CloseNow() })
	return c
}

// keepsOf keeps the WebSockets of session kept.
func keepsOf(key holdfast.SessionKey) *holdfast.KeepSockets {
	if key == "kept" {
		return keepTold
	}
	return nil
}

// Connections of all kinds continue in the next gateway with the same servers, and end there
// as they would have ended in the first.
func TestConnectionsContinueInTheNextGateway(t *testing.T) {
	one, two := newLife(t, "one", nil), newLife(t, "two", nil)
	f := start(t, nil, nil)
	f.servedBy(keepsOf, one, two)
	kept, plain := f.socketOf("kept"), f.socketOf("plain")
	ask(t, kept, "a", "one a")
	ask(t, plain, "a", "one a")
	for range 3 {
		next, served := f.follow(nil)
		if served != 2 {
			t.Fatalf("%d connections continue, want 2", served)
		}
		ask(t, kept, "b", "one b")
		ask(t, plain, "b", "one b")
		m := next.gateway.metrics
		if n := valueOf(t, m.upgraded); n != 2 {
			t.Errorf("%v upgraded connections are counted", n)
		}
		for kind, want := range map[string]float64{kindKept: 1, kindRelay: 1, kindTCP: 0} {
			if got := valueOf(t, m.imported.WithLabelValues(kind)); got != want {
				t.Errorf("%v connections of kind %s are counted, want %v", got, kind, want)
			}
		}
		if held, _ := next.sessions.count(); held != 2 {
			t.Errorf("%d sessions are held", held)
		}
		f = next
	}
	one.die()
	ask(t, kept, "", "moved")
	ask(t, kept, "c", "two c")
	expectRestart(t, plain)
	if n := len(two.seen); n != 1 {
		t.Errorf("the second server has %d connections", n)
	}
}

// The session has ended between the two gateways.
func TestSessionLeavesBetweenTwoGateways(t *testing.T) {
	one, two := newLife(t, "one", nil), newLife(t, "two", nil)
	f := start(t, nil, nil)
	f.servedBy(keepsOf, one, two)
	kept, plain := f.socketOf("kept"), f.socketOf("plain")
	ask(t, kept, "a", "one a")
	ask(t, plain, "a", "one a")
	conns := f.gateway.Export()
	one.die()
	next := start(t, nil, nil)
	next.servedBy(keepsOf, one, two)
	next.gateway.Import(t.Context(), conns)
	ask(t, kept, "", "moved")
	ask(t, kept, "b", "two b")
	expectRestart(t, plain)
}

func TestTCPContinuesInTheNextGateway(t *testing.T) {
	f := start(t, nil, nil)
	f.serveAt(greeter(t))
	c, r := f.greeted()
	for range 3 {
		next, served := f.follow(nil)
		if served != 1 {
			t.Fatalf("%d connections continue, want 1", served)
		}
		if _, err := io.WriteString(c, "select 1\n"); err != nil {
			t.Fatal(err)
		}
		if text, err := r.ReadString('\n'); text != "select 1\n" {
			t.Fatalf("%q, %v", text, err)
		}
		if n := valueOf(t, next.gateway.metrics.tcp); n != 1 {
			t.Errorf("%v TCP connections are counted", n)
		}
		f = next
	}
	c.Close()
	poll.Until(t, "the session is released", func() bool { held, _ := f.sessions.count(); return held == 0 })
	if n := valueOf(t, f.gateway.metrics.tcp); n != 0 {
		t.Errorf("%v TCP connections are counted", n)
	}
}

// A WebSocket to a session on another node is kept with a new connection to that node. Without
// websocket: keep it is closed with 1012.
func TestOtherNodesSocketsInTheNextGateway(t *testing.T) {
	for _, keep := range []*holdfast.KeepSockets{keepTold, nil} {
		one := newLife(t, "one", nil)
		all := newFleet(t)
		owner, first := all.join("owner", one.Config.Handler.ServeHTTP, nil), all.join("first", nil, nil)
		owner.local.set(func(l *fakeLocal) { l.keep = keep })
		first.leadTo(owner)
		c := first.socketOf("alice")
		ask(t, c, "a", "one a")
		next := all.join("next", nil, nil)
		next.leadTo(owner)
		conns := first.gateway.Export()
		if keep == nil {
			if len(conns) != 0 {
				t.Errorf("%d connections are exported", len(conns))
			}
			first.stop()
			expectRestart(t, c)
			continue
		}
		if n := next.gateway.Import(t.Context(), conns); n != 1 {
			t.Fatalf("%d connections continue", n)
		}
		ask(t, c, "", "moved")
		ask(t, c, "b", "one b")
	}
}

// The next gateway has its own limits, and closes what it cannot serve.
func TestConnectionsThatCannotContinue(t *testing.T) {
	one := newLife(t, "one", nil)
	f := start(t, nil, nil)
	f.servedBy(keepsOf, one)
	kept, plain := f.socketOf("kept"), f.socketOf("plain")
	ask(t, kept, "a", "one a")
	ask(t, plain, "a", "one a")
	f, served := f.follow(func(c *Config) { c.MaxRequestsPerClient = 1 })
	if served != 1 {
		t.Errorf("%d connections continue, one may", served)
	}
	again, served := f.follow(nil)
	if served != 1 {
		t.Errorf("%d connections continue", served)
	}
	for _, state := range []string{`{`, `{"kind":"other"}`, `{"kind":"kept"}`, `{"kind":"tcp","relay":{}}`} {
		if n := again.gateway.Import(t.Context(), []connfd.Conn{{State: []byte(state)}}); n != 0 {
			t.Errorf("%s is served", state)
		}
	}
	if again.gateway.slots.taken != 1 {
		t.Errorf("%d slots are taken", again.gateway.slots.taken)
	}
}

// A gateway that does not run has nothing to export.
func TestExportBeforeRun(t *testing.T) {
	f := start(t, nil, nil)
	g, err := New(f.gateway.cfg, f.sessions, nil, f.gateway.metrics, f.gateway.log)
	if err != nil {
		t.Fatal(err)
	}
	if conns := g.Export(); conns != nil {
		t.Errorf("%d connections", len(conns))
	}
}

// TestStopAtOnce stops gateways whose goroutines may not have begun. Run waits for them then, too.
func TestStopAtOnce(t *testing.T) {
	f := start(t, nil, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		g, err := New(f.gateway.cfg, f.sessions, nil, f.gateway.metrics, f.gateway.log)
		if err != nil {
			t.Fatal(err)
		}
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Run(ctx, ln); err != nil {
			t.Errorf("Run: %v", err)
		}
		if conn, err := net.Dial("tcp", ln.Addr().String()); err == nil {
			conn.Close()
			t.Error("the listener of a gateway that has ended accepts a connection")
		}
	}
}
