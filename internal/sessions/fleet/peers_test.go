package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"holdfast"
)

// ask sends b a request directly, as node a.
func ask(ctx context.Context, a, b *node, q acquireRequest) (holdfast.Owner, error) {
	return a.peers.acquire(ctx, b.record, q)
}

// TestLongBoot takes longer than one request, and than the time after which a silent
// node counts as gone.
func TestLongBoot(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		a, b := w.nodes[0], w.nodes[1]
		b.host.boot = 3*pollTimeout + time.Second
		o, err := ask(t.Context(), a, b, acquireRequest{Key: key, Place: true, Template: "demo"})
		if err != nil || o.Node != b.id || o.State != holdfast.Ready || o.Epoch == 0 {
			t.Errorf("%+v, %v", o, err)
		}
		if b.host.template != "demo" || b.host.held != 0 {
			t.Errorf("template %q, %d connections held", b.host.template, b.host.held)
		}
	})
}

func TestRequestWithoutPlaceBootsNothing(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		a, b := w.nodes[0], w.nodes[1]
		if _, err := ask(t.Context(), a, b, acquireRequest{Key: key}); !errors.Is(err, holdfast.ErrNotFound) {
			t.Errorf("%v, want ErrNotFound", err)
		}
		if b.host.boots != 0 {
			t.Error("the session was booted")
		}
	})
}

func TestSilentNodeIsGivenUp(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		a, b := w.nodes[0], w.nodes[1]
		b.host.boot = time.Hour
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		stuck := make(chan struct{})
		b.server.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-stuck })
		start := time.Now()
		_, err := ask(ctx, a, b, acquireRequest{Key: key, Place: true})
		if !errors.Is(err, errUnreachable) || time.Since(start) != silenceTimeout {
			t.Errorf("%v after %v, want it to be given up after %v", err, time.Since(start), silenceTimeout)
		}
		close(stuck)
	})
}

func TestRequestsAreLimitedPerPeer(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		a, b := w.nodes[0], w.nodes[1]
		b.host.boot = time.Minute
		var asked sync.WaitGroup
		for i := range requestsPerPeer {
			asked.Go(func() {
				_, err := ask(t.Context(), a, b, acquireRequest{Key: holdfast.SessionKey(fmt.Sprint("k", i)), Place: true})
				if err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if _, err := ask(t.Context(), a, b, acquireRequest{Key: key}); !errors.Is(err, holdfast.ErrBusy) {
			t.Errorf("a request over the limit: %v, want ErrBusy", err)
		}
		asked.Wait()
		if _, err := ask(t.Context(), a, b, acquireRequest{Key: key}); !errors.Is(err, holdfast.ErrNotFound) {
			t.Errorf("afterwards: %v, want ErrNotFound", err)
		}
	})
}

func TestConnectionsAreKept(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		a, b := w.nodes[0], w.nodes[1]
		dials := 0
		real := a.deps.Dial
		a.peers = newPeers(func(ctx context.Context, n holdfast.NodeID, addr string) (net.Conn, error) {
			dials++
			return real(ctx, n, addr)
		}, a.deps.Metrics)
		for range 5 {
			if _, err := ask(t.Context(), a, b, acquireRequest{Key: key}); !errors.Is(err, holdfast.ErrNotFound) {
				t.Fatal(err)
			}
		}
		if dials != 1 {
			t.Errorf("%d connections for five requests", dials)
		}
	})
}

// TestHandlerRefuses sends requests that no node of a fleet sends.
func TestHandlerRefuses(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		x := w.nodes[0]
		many := prepareRequest{From: "n1"}
		for range maxPrepared + 1 {
			many.Sessions = append(many.Sessions, Departing{Key: "a", Epoch: 1})
		}
		diverse := prepareRequest{From: "n1"}
		for i := range maxTemplates + 1 {
			diverse.Sessions = append(diverse.Sessions, Departing{Key: "a", Epoch: 1, Template: fmt.Sprint(i)})
		}
		for name, c := range map[string]struct {
			method, path, caller string
			body                 any
			want                 int
		}{
			"no node":         {"POST", pathAcquire, "", acquireRequest{Key: "a"}, 403},
			"bad key":         {"POST", pathAcquire, "n1", acquireRequest{Key: "../a"}, 400},
			"no JSON":         {"POST", pathAcquire, "n1", "a", 400},
			"long template":   {"POST", pathAcquire, "n1", acquireRequest{Key: "a", Template: strings.Repeat("x", 300)}, 400},
			"too long":        {"POST", pathAcquire, "n1", acquireRequest{Key: "a", Template: strings.Repeat("x", 1<<20)}, 413},
			"GET":             {"GET", pathAcquire, "n1", nil, 405},
			"elsewhere":       {"POST", "/fleet/v1/other", "n1", nil, 404},
			"another's name":  {"POST", pathPrepare, "n2", prepareRequest{From: "n1"}, 403},
			"no epoch":        {"POST", pathPrepare, "n1", prepareRequest{From: "n1", Sessions: []Departing{{Key: "a"}}}, 400},
			"many sessions":   {"POST", pathPrepare, "n1", many, 400},
			"many templates":  {"POST", pathPrepare, "n1", diverse, 400},
			"prepare bad key": {"POST", pathPrepare, "n1", prepareRequest{From: "n1", Sessions: []Departing{{Key: "A", Epoch: 1}}}, 400},
		} {
			body, err := json.Marshal(c.body)
			must(t, err)
			x.deps.Caller = func(*http.Request) holdfast.NodeID { return holdfast.NodeID(c.caller) }
			r := httptest.NewRequestWithContext(t.Context(), c.method, c.path, bytes.NewReader(body))
			answer := httptest.NewRecorder()
			x.Handler().ServeHTTP(answer, r)
			if answer.Code != c.want {
				t.Errorf("%s: %d %s, want %d", name, answer.Code, answer.Body, c.want)
			}
		}
		if x.host.boots != 0 || len(x.next.byKey) != 0 {
			t.Error("a refused request had an effect")
		}
	})
}

// TestWrongAnswers: the answers of other nodes are checked.
func TestWrongAnswers(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		a, b := w.nodes[0], w.nodes[1]
		for _, text := range []string{
			"", "{", "{}", `{"owner":{"key":"bob","node":"node-01","epoch":3}}`, `{"owner":{"key":"alice","node":"node-00","epoch":3}}`,
			`{"owner":{"key":"alice","node":"node-01"}}`, strings.Repeat(" ", 2*maxAnswer) + "{}",
		} {
			b.server.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) })
			if o, err := ask(t.Context(), a, b, acquireRequest{Key: key}); err == nil {
				t.Errorf("%.60q was accepted as %+v", text, o)
			}
		}
	})
}
