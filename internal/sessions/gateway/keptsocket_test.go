package gateway

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast"
	"holdfast/internal/sessions/gateway/closing"
	"holdfast/internal/sessions/gateway/reattach"
	"holdfast/test/poll"
)

// life is one epoch of a session: a server that sends its name before every echo until
// it is killed.
type life struct {
	*httptest.Server
	left chan struct{}
	mu   sync.Mutex
	seen []string // the WebSocket extensions that it was offered
}

func newLife(t *testing.T, name string, accept *websocket.AcceptOptions) *life {
	t.Helper()
	l := &life{left: make(chan struct{})}
	var sockets sync.WaitGroup
	ctx, kill := context.WithCancel(context.Background())
	l.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sockets.Add(1)
		defer sockets.Done()
		l.mu.Lock()
		l.seen = append(l.seen, r.Header.Get("Sec-WebSocket-Extensions"))
		l.mu.Unlock()
		c, err := websocket.Accept(w, r, accept)
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			kind, b, err := c.Read(ctx)
			if err != nil || string(b) == "drop" {
				return
			}
			if c.Write(ctx, kind, append([]byte(name+" "), b...)) != nil {
				return
			}
		}
	}))
	t.Cleanup(func() { kill(); l.Close(); sockets.Wait() })
	l.Config.RegisterOnShutdown(kill)
	return l
}

// die ends the epoch.
func (l *life) die() {
	close(l.left)
	_ = l.Config.Shutdown(context.Background()) // ends the sockets, too
}

func (l *life) route(key holdfast.SessionKey, epoch holdfast.Epoch, k *holdfast.KeepSockets) holdfast.Route {
	return holdfast.Route{Key: key, Address: l.Listener.Addr().String(), Epoch: epoch, Left: l.left, Keep: k}
}

var keepTold = &holdfast.KeepSockets{Time: patience, Buffer: 64 << 10, Tell: "moved"}

func ask(t *testing.T, c *websocket.Conn, text, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if text != "" {
		if err := c.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if _, got, err := c.Read(ctx); err != nil || string(got) != want {
		t.Fatalf("got %q, %v, want %q", got, err, want)
	}
}

// The client's WebSocket outlives its session's servers.
func TestSocketsAreKept(t *testing.T) {
	eachScheme(t, func(t *testing.T, scheme string, change func(*Config)) {
		lives := []*life{newLife(t, "one", nil), newLife(t, "two", nil), newLife(t, "three", nil)}
		f := start(t, nil, change)
		f.sessions.set(func(ctx context.Context, key holdfast.SessionKey) (holdfast.Route, error) {
			for i, l := range lives {
				if !closing.Closed(l.left) {
					return l.route(key, holdfast.Epoch(i+1), keepTold), nil
				}
			}
			return holdfast.Route{}, holdfast.ErrStopped
		})
		c := f.webSocket(scheme, &websocket.DialOptions{CompressionMode: websocket.CompressionContextTakeover})
		ask(t, c, "a", "one a")
		lives[0].die()
		ask(t, c, "", "moved")
		ask(t, c, "b", "two b")
		lives[1].die()
		ask(t, c, "", "moved")
		ask(t, c, "c", "three c")
		for _, l := range lives {
			if !slices.Equal(l.seen, []string{""}) {
				t.Errorf("extensions offered: %q", l.seen)
			}
		}
		if held, _ := f.sessions.count(); held != 1 {
			t.Errorf("%d sessions are held", held)
		}
		lives[2].die() // no server follows it
		expectRestart(t, c)
		m := f.gateway.metrics
		for o, want := range map[reattach.Outcome]float64{reattach.Kept: 2, reattach.Late: 1} {
			if got := valueOf(t, m.kept.WithLabelValues(string(o))); got != want {
				t.Errorf("%v sockets are counted as %s, want %v", got, o, want)
			}
		}
		poll.Until(t, "the sessions are released", func() bool { held, _ := f.sessions.count(); return held == 0 })
	})
}

// The WebSockets of other templates are closed.
func TestOthersAreNotKept(t *testing.T) {
	one, two := newLife(t, "one", nil), newLife(t, "two", nil)
	f := start(t, nil, nil)
	f.sessions.set(func(ctx context.Context, key holdfast.SessionKey) (holdfast.Route, error) {
		if closing.Closed(one.left) {
			return two.route(key, 2, nil), nil
		}
		return one.route(key, 1, nil), nil
	})
	c := f.webSocket("ws", nil)
	ask(t, c, "a", "one a")
	one.die()
	expectRestart(t, c)
}

// The WebSocket is closed if the next server chooses another protocol than the last one.
func TestNextServerHasToAgree(t *testing.T) {
	one, two := newLife(t, "one", &websocket.AcceptOptions{Subprotocols: []string{"v1"}}), newLife(t, "two", &websocket.AcceptOptions{Subprotocols: []string{"v2"}})
	f := start(t, nil, nil)
	f.sessions.set(func(ctx context.Context, key holdfast.SessionKey) (holdfast.Route, error) {
		if closing.Closed(one.left) {
			return two.route(key, 2, keepTold), nil
		}
		return one.route(key, 1, keepTold), nil
	})
	c := f.webSocket("ws", &websocket.DialOptions{Subprotocols: []string{"v1", "v2"}})
	ask(t, c, "a", "one a")
	one.die()
	expectRestart(t, c)
}

// The same between nodes: the first node keeps the socket, on whichever node the session
// runs.
func TestSocketsAreKeptAcrossNodes(t *testing.T) {
	for name, leave := range map[string]func(owner *member, l *life, left chan struct{}){
		"leaves": func(_ *member, l *life, left chan struct{}) { l.die(); close(left) },
		// The next route of the session is not known yet.
		"gateway stops": func(owner *member, _ *life, _ chan struct{}) { owner.stop() },
		"reset":         func(owner *member, _ *life, _ chan struct{}) { owner.line.Close(); owner.line.cut() },
		"vanishes":      func(_ *member, _ *life, left chan struct{}) { close(left) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			one, two := newLife(t, "one", nil), newLife(t, "two", nil)
			a, b, first := f.join("a", nil, nil), f.join("b", nil, nil), f.join("first", nil, nil)
			a.local.set(func(l *fakeLocal) {
				l.address, l.left, l.keep, l.refuse = one.Listener.Addr().String(), one.left, keepTold, nil
			})
			b.local.set(func(l *fakeLocal) {
				l.address, l.left, l.keep, l.refuse = two.Listener.Addr().String(), two.left, keepTold, nil
			})
			left := make(chan struct{})
			first.sessions.set(func(_ context.Context, key holdfast.SessionKey) (holdfast.Route, error) {
				if first.refusals() == 0 {
					return a.route(key, left), nil
				}
				return b.route(key, nil), nil
			})
			c := first.webSocket("ws", &websocket.DialOptions{CompressionMode: websocket.CompressionContextTakeover})
			ask(t, c, "x", "one x")
			leave(a, one, left)
			ask(t, c, "", "moved")
			ask(t, c, "y", "two y")
			if err := c.Write(t.Context(), websocket.MessageText, []byte("drop")); err != nil {
				t.Fatal(err)
			}
			if _, _, err := c.Read(t.Context()); err == nil || websocket.CloseStatus(err) != -1 {
				t.Errorf("after the server's own end: %v", err)
			}
			if got := valueOf(t, first.gateway.metrics.kept.WithLabelValues(string(reattach.Kept))); got != 1 {
				t.Errorf("%v sockets are counted as kept", got)
			}
		})
	}
}

// The keep policy that another node sends is checked.
func TestKeepHeaderIsChecked(t *testing.T) {
	h := http.Header{}
	setKeepHeader(h, *keepTold)
	if k := keepFromHeader(h); k == nil || *k != *keepTold {
		t.Errorf("got %+v", k)
	}
	for _, k := range []holdfast.KeepSockets{{Buffer: 1}, {Time: time.Second}, {Time: 1, Buffer: 1, Tell: strings.Repeat("x", holdfast.MaxTell+1)}} {
		if setKeepHeader(h, k); keepFromHeader(h) != nil {
			t.Errorf("%+v was accepted", k)
		}
	}
	h.Set(keepHeader, "nonsense")
	if keepFromHeader(h) != nil || keepFromHeader(http.Header{}) != nil {
		t.Error("an invalid header was accepted")
	}
}
