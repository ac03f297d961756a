package agent

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"holdfast/internal/control/api"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// slowEngine is a proxy before an engine's socket. While it is held, no request reaches the
// engine.
type slowEngine struct {
	mu   sync.Mutex
	gate chan struct{} // nil: open
	now  int           // requests that have come to a closed gate
	most int
	asks int // unanswered requests that ask whether the engine answers, and have passed the gate
}

// hold closes the gate, and returns when the agent's last question that has passed it is answered.
func (s *slowEngine) hold(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	s.gate, s.most = make(chan struct{}), 0
	s.mu.Unlock()
	poll.Until(t, "the engine has answered what it was asked", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.asks == 0
	})
}

// release returns how many requests have waited at once.
func (s *slowEngine) release() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gate != nil {
		close(s.gate)
		s.gate = nil
	}
	return s.most
}

// serve passes a request on when the gate is open, unless the client has gone before.
func (s *slowEngine) serve(r *http.Request, pass func()) {
	s.mu.Lock()
	gate, counter := s.gate, new(int)
	switch {
	case gate != nil:
		counter = &s.now
	case strings.HasSuffix(r.URL.Path, "/info"), strings.HasSuffix(r.URL.Path, "/containers/json"):
		counter = &s.asks
	}
	*counter++
	s.most = max(s.most, s.now)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		*counter--
	}()
	if gate != nil {
		select {
		case <-gate:
		case <-r.Context().Done():
			return
		}
	}
	pass()
}

// slowed starts a proxy before the package's engine until the test's end, and returns its
// address.
func slowed(t *testing.T, socket string) (*slowEngine, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "hf")
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	s := &slowEngine{}
	dial := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}
	pass := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "engine"})
	pass.Transport, pass.FlushInterval = dial, -1
	pass.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.serve(r, func() { pass.ServeHTTP(w, r) })
	})}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(listener) }()
	t.Cleanup(func() {
		s.release()
		server.Close()
		<-ended
		dial.CloseIdleConnections()
		os.RemoveAll(dir)
	})
	return s, "unix://" + listener.Addr().String()
}

// TestSlowEngine: while the engine does not answer, /readyz says so within a bounded time,
// sessions are served, probes make no pile of requests, and no session is given up. A
// session that is asked for meanwhile boots when the engine answers.
func TestSlowEngine(t *testing.T) {
	if labtest.OnContainerd() {
		t.Skip("the proxy is one of Docker's API")
	}
	slow, at := slowed(t, labtest.Engine(t).Socket())
	h := newHostOn(t, at, "drain: {pause_engine: false}\nsessions: {networks: 0}\n")
	h.start()
	h.open("alice")
	before := h.running()

	slow.hold(t)
	// Until this probe fails, the agent may still read the last answer of the engine, and all
	// probes would have that one.
	poll.Until(t, "a probe fails", func() bool { code, _ := h.readyz(); return code != http.StatusOK })
	const probes = 50
	answers := make(chan api.Error, probes)
	for range probes {
		go func() {
			code, answer := h.readyz()
			answer.Log = fmt.Sprint("status ", code)
			answers <- answer
		}()
	}
	boot := make(chan struct{})
	go func() { defer close(boot); h.open("bob") }()
	for range probes {
		if a := <-answers; !strings.Contains(a.Message, "no answer within") || a.Advice == "" {
			t.Errorf("%+v", a)
		}
	}
	if reply := h.ask("alice"); reply.Session != "alice" {
		t.Errorf("%+v", reply)
	}
	if list := h.sessions(); len(list) != 2 {
		t.Errorf("%+v", list)
	}
	poll.Until(t, "the node's list names the trouble", func() bool { return strings.Contains(h.must("node", "ls"), "no answer within") })
	if most := slow.release(); most > 20 {
		t.Errorf("%d requests waited at once", most)
	}
	poll.Until(t, "the node is ready again", func() bool { code, _ := h.readyz(); return code == http.StatusOK })
	<-boot
	now := h.running()
	if len(now["alice"]) != 1 || now["alice"][0] != before["alice"][0] || len(now["bob"]) != 1 {
		t.Errorf("containers %v, before %v", now, before)
	}
	h.must("node", "drain")
	poll.Until(t, "the engine has removed the containers", func() bool { return len(h.containers()) == 0 })
}
