package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"

	"holdfast"

	"holdfast/test/poll"
)

// TestFinishClosesConnections: a client that reuses its connection is served, and every
// kind of answer tells it to open a new connection.
func TestFinishClosesConnections(t *testing.T) {
	f := start(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "keep-alive") // does not apply to the client's connection
		io.WriteString(w, "served")
	}, nil)
	if res, _ := f.get("/s/alice/"); res.Close {
		t.Error("a connection was closed before Finish")
	}
	f.gateway.Finish(t.Context())
	for path, status := range map[string]int{"/s/alice/": 200, "/s/-/": 400, "/nowhere": 404} {
		if res, body := f.get(path); !res.Close || res.StatusCode != status {
			t.Errorf("%s: %s, close %v: %s", path, res.Status, res.Close, body)
		}
	}
}

// TestFinishWaitsForParkedRequests: a request that is parked when Finish is called is
// served.
func TestFinishWaitsForParkedRequests(t *testing.T) {
	f := start(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "served") }, nil)
	ready := make(chan struct{})
	f.sessions.mu.Lock()
	serve := f.sessions.acquire
	f.sessions.mu.Unlock()
	f.sessions.set(func(ctx context.Context, key holdfast.SessionKey) (holdfast.Route, error) {
		select {
		case <-ready:
			return serve(ctx, key)
		case <-ctx.Done():
			return holdfast.Route{}, ctx.Err()
		}
	})
	var asked sync.WaitGroup
	asked.Go(func() {
		if res, body := f.get("/s/alice/"); body != "served" || !res.Close {
			t.Errorf("%s, close %v: %s", res.Status, res.Close, body)
		}
	})
	parked := func() bool { n, _, _ := f.gateway.InFlight(); return n == 1 }
	poll.Until(t, "a request is parked", parked)
	ctx, cancel := context.WithCancelCause(t.Context())
	finished := make(chan struct{})
	go func() { f.gateway.Finish(ctx); close(finished) }()
	poll.Until(t, "Finish has begun", f.gateway.finishing.Load)
	if !parked() {
		t.Error("Finish returned before a parked request was served")
	}
	close(ready)
	<-finished
	asked.Wait()

	// The context bounds the wait.
	f.park()
	asked.Go(func() {
		if res, body := f.get("/s/alice/"); res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" {
			t.Errorf("%s: %s", res.Status, body)
		}
	})
	poll.Until(t, "another request is parked", parked)
	cancel(errors.New("the time is up"))
	f.gateway.Finish(ctx)
	f.stop()
	asked.Wait()
}

// TestFinishClosesConnectionsOfNodes: after an answer or a refusal, another node sends
// its next request on a new connection, which the next gateway accepts.
func TestFinishClosesConnectionsOfNodes(t *testing.T) {
	f := newFleet(t)
	owner := f.join("owner", echoBody("owner"), nil)
	first := f.join("first", nil, nil)
	first.leadTo(owner)
	ask := func() int {
		t.Helper()
		resp, _ := first.get("/s/alice/")
		return resp.StatusCode
	}
	for range 2 {
		if status := ask(); status != 200 || owner.line.count() != 1 {
			t.Fatalf("%d, over %d connections", status, owner.line.count())
		}
	}
	owner.gateway.Finish(t.Context())
	for n := range 3 {
		if status := ask(); status != 200 || owner.line.count() != n+1 {
			t.Errorf("request %d: %d, over %d connections", n, status, owner.line.count())
		}
	}
	other := f.join("other", echoBody("other"), nil)
	owner.local.set(func(l *fakeLocal) { l.refuse = errors.New("not here any more") })
	for range 2 {
		before := owner.line.count()
		first.sessions.mu.Lock()
		first.sessions.refused = nil
		first.sessions.mu.Unlock()
		first.leadTo(owner, other)
		if status := ask(); status != 200 || owner.line.count() != before+1 {
			t.Errorf("refused: %d, over %d more connections", status, owner.line.count()-before)
		}
	}
}
