package session

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/store"
	"holdfast/internal/sessions/hook"
	"holdfast/internal/sessions/kill"
	"holdfast/internal/sessions/pool"
	"holdfast/test/lab/labtest"
	"holdfast/test/memstore"
	"holdfast/test/poll"
)

// TestMain also runs the keeper of a snapshot command, if its arguments say so.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "hook" {
		syscall.Exit(hook.Main(os.Args[2:])) // os.Exit takes a second under -race
	}
	os.Exit(labtest.Main(m))
}

// node is a manager on a real engine, with a store that can inject faults.
type node struct {
	*Manager
	engine engine.Engine
	store  *memstore.Store
	lease  atomic.Int64
	opener *kill.Opener
	end    func() // stops the manager like a stop of the agent
}

// web returns a template with a server that answers at once.
func web() Template {
	return Template{
		Name: "web", Image: labtest.TestServer, Port: 8080,
		Ready: Readiness{HTTPPath: "/healthz", Timeout: 20 * time.Second},
	}
}

// setup is the configuration of a node in a test.
type setup struct {
	id     holdfast.NodeID
	store  *memstore.Store       // nil: a new one
	engine engine.Engine         // nil: the shared one
	faulty store.Store           // store of the manager; nil: store
	held   *Lease                // the node's lease; nil: a lease that does not end
	dead   Deadman               // nil: none
	watch  func(Watcher) Watcher // wraps the watcher; nil: no wrapper
	heard  Spinups               // nil: none
	nets   pool.Networks         // nil: none
	warm   WarmPool              // nil: none
	mover  Mover                 // nil: memory is lost
	assign func(holdfast.SessionKey, string) string
	// commands is Deps.Commands.
	commands func(context.Context, holdfast.SessionKey) (time.Time, bool, error)
	cfg      Config
}

// newNode starts a manager that first adopts the existing containers.
func newNode(t *testing.T, s setup) *node {
	t.Helper()
	n, watcher := unstarted(t, s)
	if _, err := n.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.run(t, watcher)
	return n
}

// unstarted returns a manager, and the watcher that has to run beside it.
func unstarted(t *testing.T, s setup) (*node, *kill.Watcher) {
	t.Helper()
	e := s.engine
	if e == nil {
		e = openEngine(t)
	}
	if s.store == nil {
		s.store = memstore.New(1000)
	}
	if s.faulty == nil {
		s.faulty = s.store
	}
	lease, _, err := s.store.Grant(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	opener, err := kill.NewOpener()
	if err != nil {
		t.Fatal(err)
	}
	watcher, err := kill.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	s.cfg.Node = s.id
	if s.cfg.Node == "" {
		s.cfg.Node = holdfast.NodeID(t.Name())
	}
	if s.cfg.Templates == nil {
		s.cfg.Templates = []Template{web()}
	}
	if s.cfg.CheckEvery == 0 {
		s.cfg.CheckEvery = 50 * time.Millisecond
	}
	if s.cfg.Boots == 0 {
		s.cfg.Boots = 8
	}
	if s.watch == nil {
		s.watch = func(w Watcher) Watcher { return w }
	}
	n := &node{engine: e, store: s.store, opener: opener}
	n.lease.Store(int64(lease))
	id := func() store.LeaseID { return store.LeaseID(n.lease.Load()) }
	if s.held != nil {
		id = s.held.ID
	}
	n.Manager = New(s.cfg, Deps{
		Store: s.faulty, Engine: e, Opener: opener, Killer: &kill.Killer{}, Watcher: s.watch(watcher),
		Deadman: s.dead, Hooks: hook.Runner{"/proc/self/exe", "hook"}, Lease: id, Metrics: NewMetrics(prometheus.NewRegistry()), Spinups: s.heard, Pull: pullWith(e), Networks: s.nets, Warm: s.warm, Mover: s.mover, Assign: s.assign, Commands: s.commands, Log: testLog(t),
	})
	return n, watcher
}

func testLog(t *testing.T) *slog.Logger { return slog.New(slog.NewTextHandler(t.Output(), nil)) }

// daemon returns the daemon of the package's engine.
func daemon(t *testing.T) labtest.Daemon {
	t.Helper()
	d, _ := labtest.Either(t)
	return d
}

// openEngine connects to the package's engine.
func openEngine(t *testing.T) engine.Engine {
	t.Helper()
	_, e := labtest.Either(t)
	return e
}

// run runs the manager until end is called or the test ends, and then removes
// the node's containers.
func (n *node) run(t *testing.T, w *kill.Watcher) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{}, 2)
	go func() { _ = w.Run(ctx); ended <- struct{}{} }()
	go func() { _ = n.Run(ctx); ended <- struct{}{} }()
	poll.Until(t, "the manager runs", func() bool { return n.tasks.Go(func(context.Context) {}) })
	stopped := false
	n.end = func() {
		if !stopped {
			stopped = true
			cancel()
			for range 2 {
				<-ended
			}
		}
	}
	t.Cleanup(func() {
		n.end()
		for _, c := range n.containers(t) {
			if err := n.engine.Remove(context.Background(), c.ID); err != nil {
				t.Errorf("cleaning up: %v", err)
			}
		}
	})
}

// containers returns the containers of the node in any state.
func (n *node) containers(t *testing.T) []engine.Container {
	t.Helper()
	list, err := n.engine.List(context.Background(), map[string]string{LabelNode: string(n.cfg.Node)})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// records returns the session records of the store.
func (n *node) records(t *testing.T) []holdfast.Owner {
	t.Helper()
	list, _, err := n.store.List(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// empty waits until the engine has no container of the node and the store has no
// record.
func (n *node) empty(t *testing.T) {
	t.Helper()
	poll.Until(t, "nothing is left", func() bool { return len(n.containers(t)) == 0 && len(n.records(t)) == 0 })
}

// serve acquires the session, releases it at once, and returns its route.
func (n *node) serve(t *testing.T, key holdfast.SessionKey) holdfast.Route {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, release, err := n.Acquire(ctx, key, "")
	if err != nil {
		t.Fatalf("session %s: %v", key, err)
	}
	release()
	return r
}

// answers returns an error if the session's server does not answer on the route.
func answers(r holdfast.Route) error {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Get("http://" + r.Address + "/healthz")
	if err != nil {
		return err
	}
	res.Body.Close()
	if res.StatusCode >= 300 {
		return errors.New(res.Status)
	}
	return nil
}

// pullWith pulls with an engine, without logins.
func pullWith(e engine.Engine) func(context.Context, string) (spinup.Pull, error) {
	return func(ctx context.Context, image string) (spinup.Pull, error) {
		return spinup.Reduce(spinup.Options{Image: image, Begun: time.Now()}, e.Pull(ctx, image, engine.PullOptions{}))
	}
}
