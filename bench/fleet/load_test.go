package fleet

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast"
	"holdfast/bench/rig"
	"holdfast/test/lab/echoserver"
)

// gatewayOf is a node whose gateway is h.
func gatewayOf(t *testing.T, h http.HandlerFunc) *node {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	m := &node{gateway: s.Listener.Addr().String()}
	m.live.Store(true)
	return m
}

// echoes answers as a session does.
func echoes(w http.ResponseWriter, r *http.Request) {
	r.URL.Path = "/ws"
	echoserver.Handler().ServeHTTP(w, r)
}

func loadOn(t *testing.T, nodes ...*node) *load {
	l := newLoad(nodes, []holdfast.SessionKey{"k"}, rig.Patience)
	t.Cleanup(l.wait)
	return l
}

func TestRefusedClients(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	gone := &node{gateway: closed.Addr().String()}
	gone.live.Store(true)
	for want, m := range map[string]*node{
		"503 parked_too_long": gatewayOf(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			io.WriteString(w, `{"reason":"parked_too_long"}`)
		}),
		"502 unexplained": gatewayOf(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }),
		"gateway went away": gatewayOf(t, func(w http.ResponseWriter, _ *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				c.Close()
			}
		}),
		"gateway is gone": gone,
	} {
		l := loadOn(t, m)
		if _, err := l.connect(t.Context(), "k", now()); err == nil {
			t.Errorf("%s: connected", want)
		}
		if len(l.past) != 1 || l.past[0].reason != want || m.visitors.Load() != 0 {
			t.Errorf("want %q, got %+v", want, l.past)
		}
	}
}

// Clients do not ask a gateway that is not live. They replace a connection that ends before its
// first answer. The wait counts from the intended start.
func TestClientGoesOnUntilItIsAnswered(t *testing.T) {
	var asked atomic.Int64
	m := gatewayOf(t, func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) > 1 {
			echoes(w, r)
			return
		}
		if c, err := websocket.Accept(w, r, nil); err == nil {
			c.Close(websocket.StatusServiceRestart, "the session moves")
		}
	})
	away := gatewayOf(t, func(http.ResponseWriter, *http.Request) { t.Error("a gateway that is not live was asked") })
	away.live.Store(false)
	l := loadOn(t, away, m)
	intended := now() - time.Second
	c, err := l.connect(t.Context(), "k", intended)
	if err != nil {
		t.Fatal(err)
	}
	c.CloseNow()
	if asked.Load() != 2 || l.cuts != 1 || len(l.past) != 1 || l.past[0].reason != "" || l.past[0].end-l.past[0].begin < time.Second {
		t.Errorf("asked %d times; %d cuts, %+v", asked.Load(), l.cuts, l.past)
	}
}

// Clients that wait for a stalled gateway are counted, and so are those that arrive meanwhile.
func TestArrivalsDoNotWaitForEachOther(t *testing.T) {
	release := make(chan struct{})
	var waiting atomic.Int64
	m := gatewayOf(t, func(w http.ResponseWriter, r *http.Request) {
		waiting.Add(1)
		<-release
		echoes(w, r)
	})
	l := loadOn(t, m)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.arrive(ctx, t.Context(), 1000, rand.New(rand.NewPCG(1, 1)))
	}()
	for end := time.Now().Add(rig.Patience); waiting.Load() < 20; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d clients came while the gateway stalled", waiting.Load())
		}
	}
	stop()
	<-ended
	close(release)
	l.wait()
	if len(l.past) < 20 || l.busy != 0 {
		t.Errorf("%d clients were counted", len(l.past))
	}
	for _, a := range l.past {
		if a.reason != "" || a.begin >= a.end {
			t.Errorf("%+v", a)
		}
	}
}

func TestHolderComesBack(t *testing.T) {
	var asked atomic.Int64
	m := gatewayOf(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/s/k/") {
			t.Errorf("asked for %s", r.URL.Path)
		}
		if asked.Add(1) > 1 {
			echoes(w, r)
			return
		}
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		// The server answers once, and closes the connection.
		if kind, data, err := c.Read(r.Context()); err == nil {
			c.Write(r.Context(), kind, data)
		}
	})
	l := loadOn(t, m)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	if err := l.hold(ctx); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(rig.Patience); asked.Load() < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the client did not come back")
		}
	}
}
