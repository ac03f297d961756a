package docker_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/engine/docker"
	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
)

// proxyTo stands between the adapter and an engine, on a unix socket, and calls
// before with every request.
func proxyTo(t *testing.T, private *lab.Engine, before func(*http.Request)) string {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", private.Socket())
	}}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: "docker"}) },
		Transport:     transport,
		FlushInterval: -1,
	}
	socket := filepath.Join(t.TempDir(), "docker.sock")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		before(r)
		proxy.ServeHTTP(w, r)
	})}
	var served sync.WaitGroup
	served.Go(func() { _ = srv.Serve(ln) }) // ends with Close
	t.Cleanup(func() {
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
		served.Wait()
		transport.CloseIdleConnections()
	})
	return "unix://" + socket
}

// TestEventsWhileSubscribing makes a container after the adapter's request for events
// and before the subscription begins: its event arrives.
func TestEventsWhileSubscribing(t *testing.T) {
	direct, private := open(t)
	var id string
	var err error
	create := sync.OnceFunc(func() {
		id, err = direct.Create(t.Context(), engine.Spec{Image: labtest.Busybox})
	})
	host := proxyTo(t, private, func(r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/events") {
			create()
		}
	})
	e := openAt(t, docker.Config{Host: host})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var seen []engine.Event
	for ev := range e.Watch(ctx, engine.WatchOptions{}) {
		if seen = append(seen, ev); ev.Action == "create" {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(seen) != 2 || !seen[0].Gap || seen[1].ID != id {
		t.Errorf("container %s, events %+v", id, seen)
	}
	if err := direct.Remove(t.Context(), id); err != nil {
		t.Error(err)
	}
}

// TestRoundTrips counts the requests of a boot: one to create and one to start, and
// no other.
func TestRoundTrips(t *testing.T) {
	_, private := open(t)
	var mu sync.Mutex
	var requests []string
	host := proxyTo(t, private, func(r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		requests = append(requests, r.Method+" "+r.URL.Path)
	})
	e := openAt(t, docker.Config{Host: host})
	mu.Lock()
	requests = nil
	mu.Unlock()
	id, err := e.Create(t.Context(), engine.Spec{Image: labtest.Busybox})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	if len(requests) != 2 {
		t.Errorf("requests of a boot: %q", requests)
	}
	mu.Unlock()
	if err := e.Remove(t.Context(), id); err != nil {
		t.Error(err)
	}
}
