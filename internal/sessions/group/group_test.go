package group

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/platform/store"
	"holdfast/test/memstore"
)

// node is a node of a fleet whose sessions are records in a store, without containers.
// It counts what its keepers ask for.
type node struct {
	*memstore.Store
	id    holdfast.NodeID
	lease store.LeaseID

	mu     sync.Mutex
	behind func(key holdfast.SessionKey) bool // caught_up fails; called with mu held
	start  error
	conns  map[holdfast.SessionKey]int
	stops  []holdfast.SessionKey
}

func newNode(t *testing.T, s *memstore.Store, id holdfast.NodeID) *node {
	t.Helper()
	lease, _, err := s.Grant(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return &node{Store: s, id: id, lease: lease, behind: func(holdfast.SessionKey) bool { return false }, conns: map[holdfast.SessionKey]int{}}
}

// set changes how the node behaves.
func (n *node) set(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

func (n *node) groups(others bool, specs ...Spec) *Groups {
	return New(Config{Node: n.id, Specs: specs, Others: others}, Deps{
		Store: n.Store, Lease: func() store.LeaseID { return n.lease }, Sessions: n,
		Metrics: NewMetrics(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler),
	})
}

func (n *node) Start(ctx context.Context, key holdfast.SessionKey, template string) (holdfast.Owner, error) {
	if o, err := n.Get(ctx, key); err == nil {
		return o, nil
	}
	n.mu.Lock()
	err := n.start
	n.mu.Unlock()
	if err != nil {
		return holdfast.Owner{}, err
	}
	o, err := n.Claim(ctx, holdfast.Owner{Key: key, Node: n.id, State: holdfast.Claimed, Template: template}, n.lease)
	if err != nil {
		return o, err
	}
	o.State = holdfast.Ready
	return n.Advance(ctx, o)
}

func (n *node) Stop(ctx context.Context, o holdfast.Owner) (holdfast.KillReport, error) {
	n.mu.Lock()
	n.stops = append(n.stops, o.Key)
	n.mu.Unlock()
	_, err := n.Release(ctx, o)
	return holdfast.KillReport{}, err
}

func (n *node) Connections(_ context.Context, o holdfast.Owner) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.conns[o.Key], nil
}

func (n *node) Exec(_ context.Context, o holdfast.Owner, command []string, out io.Writer) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.behind(o.Key) {
		fmt.Fprintf(out, "%s\n%s is behind\n", strings.Join(command, " "), o.Key)
		return 1, nil
	}
	return 0, nil
}

func spec(name string, replicas int) Spec {
	return Spec{Name: name, Replicas: replicas, CaughtUp: []string{"lag", "{key}"}, CatchUpLimit: time.Minute, DrainLimit: 30 * time.Second}
}

// running runs groups until stop.
func running(g *Groups) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	return func() { cancel(); <-done }
}

// states returns the replicas and their states, by key.
func states(t *testing.T, g *Groups, name string) string {
	t.Helper()
	one, err := g.read(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, r := range one.Replicas {
		all = append(all, string(r.Key)+" "+string(r.State))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func replaced(t *testing.T, g *Groups, name string) *holdfast.GroupReplacement {
	t.Helper()
	one, err := g.read(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return one.Replacing
}

// A group gets as many replicas as it is to have, also when that changes, and a replica
// that ends is started again and catches up.
func TestReplicasAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memstore.New(1000), "a")
		g := n.groups(false, spec("db", 3), spec("other", 1))
		stop := running(g)
		time.Sleep(10 * time.Second)
		if got := states(t, g, "db"); got != "db-0 serving, db-1 serving, db-2 serving" {
			t.Errorf("at first: %s", got)
		}
		o, err := n.Get(t.Context(), "db-1")
		if err != nil {
			t.Fatal(err)
		}
		n.set(func() { n.behind = func(key holdfast.SessionKey) bool { return key == "db-1" } })
		if _, err := n.Release(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		r := g.Router(nil, func(key holdfast.SessionKey) (holdfast.Owner, bool) {
			o, err := n.Get(t.Context(), key)
			return o, err == nil
		})
		one, _ := g.read(t.Context(), "db")
		for range 6 {
			if key, ok := r.choose(g.cfg.Specs[0], one); !ok || key == "db-1" {
				t.Errorf("%q gets a request (%v), and db-1 is behind", key, ok)
			}
		}
		n.set(func() { n.behind = func(holdfast.SessionKey) bool { return false } })
		stop()
		g = n.groups(false, spec("db", 1))
		stop = running(g)
		time.Sleep(time.Minute)
		if got := states(t, g, "db"); got != "db-0 serving" || len(n.stops) != 2 {
			t.Errorf("with fewer replicas: %s, stopped %v", got, n.stops)
		}
		stop()
	})
}

// The keeper leaves in each phase, and the next one completes the replacement. In a fleet
// the old replica stays for the time that gateways may act on an older record.
func TestNextKeeperContinues(t *testing.T) {
	for _, phase := range []holdfast.ReplacePhase{holdfast.ReplaceCatchingUp, holdfast.ReplaceDraining} {
		synctest.Test(t, func(t *testing.T) {
			s := memstore.New(1000)
			a, b := newNode(t, s, "a"), newNode(t, s, "b")
			first, second := a.groups(true, spec("db", 2)), b.groups(true, spec("db", 2))
			stopFirst := running(first)
			time.Sleep(5 * time.Second)
			stopSecond := running(second)
			if phase == holdfast.ReplaceCatchingUp {
				a.set(func() { a.behind = func(holdfast.SessionKey) bool { return true } })
			} else {
				a.set(func() { a.conns["db-0"] = 1 })
				b.set(func() { b.conns["db-0"] = 1 })
			}
			if err := second.BeginReplace(t.Context(), "db", nil, time.Minute); err != nil {
				t.Fatal(err)
			}
			if err := second.BeginReplace(t.Context(), "db", nil, time.Minute); !errors.Is(err, holdfast.ErrBusy) {
				t.Errorf("a second replacement: %v", err)
			}
			time.Sleep(10 * time.Second)
			if r := replaced(t, second, "db"); r.Phase != phase || phase == holdfast.ReplaceCatchingUp && r.Progress != "db-2 is behind" {
				t.Errorf("%+v, want phase %s", r, phase)
			}
			stopFirst()
			time.Sleep(2 * time.Minute)
			r := replaced(t, second, "db")
			if r.Active() || len(r.Report.Rows) != 2 || r.Report.Failed() != 0 || len(a.stops) != 0 || !slices.Equal(b.stops, []holdfast.SessionKey{"db-0", "db-1"}) {
				t.Errorf("%s: %+v; stopped by a %v, by b %v", phase, r, a.stops, b.stops)
			}
			for _, row := range r.Report.Rows {
				if row.Replica.Drained < holdfast.Millis(2*maxAge) {
					t.Errorf("%s left after %v", row.Replica.Old, row.Replica.Drained)
				}
			}
			if got := states(t, second, "db"); got != "db-0 serving, db-2 serving" {
				t.Errorf("%s: at the end: %s", phase, got)
			}
			stopSecond()
		})
	}
}

// A new replica that does not start, or does not catch up, is removed. Nothing else changes,
// and the rest is not begun.
func TestFirstFailureEndsTheReplacement(t *testing.T) {
	for why, fail := range map[string]func(*node){
		"no room":                              func(n *node) { n.start = errors.New("no room") },
		"db-2 has not caught up":               func(n *node) { n.behind = func(key holdfast.SessionKey) bool { return key == "db-2" } },
		holdfast.ErrBusy.Error():               func(n *node) { n.start = holdfast.ErrBusy }, // until the timeout
		"its container ended before it had":    func(n *node) { n.behind = func(key holdfast.SessionKey) bool { n.end(key); return true } },
		"replica db-2 ended as soon as it had": func(n *node) { n.behind = func(key holdfast.SessionKey) bool { n.end(key); return false } },
	} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t, memstore.New(1000), "a")
			g := n.groups(false, spec("db", 2))
			stop := running(g)
			defer stop()
			time.Sleep(5 * time.Second)
			n.set(func() { fail(n) })
			if err := g.BeginReplace(t.Context(), "db", nil, time.Minute); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Minute)
			r := replaced(t, g, "db")
			if r.Active() || len(r.Report.Rows) != 1 || !strings.Contains(r.Report.Rows[0].Error, why) || !slices.Equal(r.Report.Unbegun, []holdfast.SessionKey{"db-1"}) {
				t.Errorf("%s: %+v", why, r)
			}
			if got := states(t, g, "db"); got != "db-0 serving, db-1 serving" {
				t.Errorf("%s: %s", why, got)
			}
			if slices.Contains(n.stops, "db-0") || slices.Contains(n.stops, "db-1") {
				t.Errorf("%s: an old replica was stopped: %v", why, n.stops)
			}
		})
	}
}

// end ends a session whose container died.
func (n *node) end(key holdfast.SessionKey) {
	if o, err := n.Get(context.Background(), key); err == nil && key == "db-2" {
		_, _ = n.Release(context.Background(), o)
	}
}

// A connection that does not end is cut off after the limit, and --stop ends the whole after
// the present replica.
func TestDrainIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, memstore.New(1000), "a")
		g := n.groups(false, spec("db", 2))
		stop := running(g)
		defer stop()
		time.Sleep(5*time.Second + lookEvery/2) // between two looks of the keeper
		n.set(func() { n.conns["db-0"] = 1 })
		if err := g.BeginReplace(t.Context(), "db", nil, time.Minute); err != nil {
			t.Fatal(err)
		}
		if err := g.StopReplace(t.Context(), "db"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		// The command to stop came before the first replica: none is begun.
		if r := replaced(t, g, "db"); r.Active() || len(r.Report.Unbegun) != 2 {
			t.Errorf("%+v", r)
		}
		if err := g.BeginReplace(t.Context(), "db", nil, time.Minute); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if err := g.StopReplace(t.Context(), "db"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		r := replaced(t, g, "db")
		if r.Active() || len(r.Report.Rows) != 1 || len(r.Report.Unbegun) != 1 || r.Report.Rows[0].Replica.Drained < holdfast.Millis(30*time.Second) {
			t.Errorf("%+v", r)
		}
	})
}

// A group's requests go to the replica with the fewest, in turn among equals. One that has
// refused is tried again only if there is no other.
func TestChoice(t *testing.T) {
	r := (&Groups{}).Router(nil, func(key holdfast.SessionKey) (holdfast.Owner, bool) {
		return holdfast.Owner{Key: key, State: holdfast.Ready, Epoch: 1}, key != "db-2"
	})
	one := holdfast.Group{Name: "db"}
	for i := range 4 {
		one.Replicas = append(one.Replicas, holdfast.Replica{Key: holdfast.ReplicaKey("db", i), State: holdfast.ReplicaServing, Epoch: 1})
	}
	choose := func(what string, want ...holdfast.SessionKey) {
		t.Helper()
		for _, key := range want {
			if got, ok := r.choose(spec("db", 4), one); !ok || got != key {
				t.Errorf("%s: %s (%v), want %s", what, got, ok, key)
			}
		}
	}
	choose("in turn", "db-1", "db-3", "db-0", "db-1")
	r.count("db-3", 1)
	r.count("db-0", 2)
	choose("the fewest", "db-1", "db-1")
	r.count("db-1", 2)
	choose("the fewest", "db-3")
	r.refused["db-3"] = time.Now()
	choose("after a refusal", "db-0", "db-1", "db-0")
	one.Replicas[0].State, one.Replicas[1].State = holdfast.ReplicaLeaving, holdfast.ReplicaJoining
	choose("without another", "db-3")
	r.count("db-0", -2)
	if _, left := r.open["db-0"]; left {
		t.Error("a replica without requests is still counted")
	}
}

func TestLastLine(t *testing.T) {
	for text, want := range map[string]string{"": "none", "\n\n": "none", "a\nb\n": "b", "a\rb": "b", strings.Repeat("x", 1000): strings.Repeat("x", maxLine)} {
		var l lastLine
		for part := range slices.Chunk([]byte(text), 7) {
			_, _ = l.Write(part)
		}
		if got := l.text("none"); got != want {
			t.Errorf("%.20q: %q", text, got)
		}
	}
}
