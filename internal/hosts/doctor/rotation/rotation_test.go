package rotation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"holdfast"
	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/hosts/doctor/rule"
	"holdfast/internal/hosts/doctor/watch"
	"holdfast/internal/platform/store"
	"holdfast/test/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(name string, s rule.Severity, subject fact.Subject) watch.Open {
	return watch.Open{Finding: doctor.Finding{Finding: rule.Finding{Rule: name, Severity: s, Title: "it is slow", Culprit: subject}}}
}

// Only a finding about the whole host takes the host out of rotation.
func TestReason(t *testing.T) {
	group := fact.Subject{Cgroup: "/docker/a"}
	for _, c := range []struct {
		open watch.Open
		want bool
	}{
		{open("dying-cgroups", rule.Critical, fact.Subject{}), true},
		{open("dying-cgroups", rule.Warning, fact.Subject{}), false},
		{open("fadvise-storm", rule.Critical, group), true}, // one container slows down all
		{open("throttling", rule.Critical, group), false},   // it slows down itself only
		{open("conntrack-full", rule.Critical, fact.Subject{Device: "net:[1]"}), true},
		{open("conntrack-full", rule.Critical, fact.Subject{Device: "net:[2]", Pid: 7, Cgroup: "/docker/a"}), false},
	} {
		if got := Reason([]watch.Open{c.open}); (got != "") != c.want {
			t.Errorf("%s %s %+v: %q", c.open.Rule, c.open.Severity, c.open.Culprit, got)
		}
	}
}

func auto() Config {
	c := DefaultConfig()
	c.Drain = DrainAuto
	return c
}

// shortDelay is a configuration that drains earlier than it would retry.
func shortDelay() Config {
	c := auto()
	c.DrainAfter = 5 * time.Second
	return c
}

func TestStates(t *testing.T) {
	begin := time.Now()
	type step struct {
		after    time.Duration // since the start
		sick     string
		refuses  bool
		drained  bool // result of the last drain before the step
		want     action
		degraded bool
	}
	for name, c := range map[string]struct {
		cfg   Config
		steps []step
	}{
		"sick for a moment": {auto(), []step{{0, "x", false, false, nothing, true}, {time.Second, "", false, false, nothing, true},
			{4 * time.Minute, "", false, false, nothing, true}, {6 * time.Minute, "", false, false, nothing, false}}},
		"sick now and then": {auto(), []step{{0, "x", false, false, nothing, true}, {4 * time.Minute, "", false, false, nothing, true}, {4*time.Minute + time.Second, "y", false, false, nothing, true},
			{8 * time.Minute, "", false, false, nothing, true}, {10 * time.Minute, "", false, false, nothing, false}}},
		"off": {DefaultConfig(), []step{{0, "x", false, false, nothing, true}, {time.Hour, "x", false, false, nothing, true}}},
		"long, and back": {auto(), []step{{0, "x", false, false, nothing, true}, {15 * time.Minute, "x", false, false, drain, true},
			{16 * time.Minute, "x", true, true, nothing, true}, {17 * time.Minute, "", true, false, nothing, true}, {30 * time.Minute, "", true, false, undrain, false}}},
		"not its turn": {auto(), []step{{0, "x", false, false, nothing, true}, {15 * time.Minute, "x", false, false, drain, true},
			{15*time.Minute + 30*time.Second, "x", false, false, nothing, true}, {16 * time.Minute, "x", false, false, drain, true}}},
		"not its turn, short drain_after": {shortDelay(), []step{{0, "x", false, false, nothing, true}, {5 * time.Second, "x", false, false, drain, true},
			{9 * time.Second, "x", false, false, nothing, true}, {10 * time.Second, "x", false, false, drain, true}}},
		"cordoned by the operator": {auto(), []step{{0, "x", true, false, nothing, true}, {time.Hour, "x", true, false, nothing, true}, {2 * time.Hour, "", true, false, nothing, false}}},
		"the operator uncordons it": {auto(), []step{{0, "x", false, false, nothing, true}, {15 * time.Minute, "x", false, false, drain, true}, {16 * time.Minute, "x", true, true, nothing, true},
			{20 * time.Minute, "x", false, false, nothing, true}, {2 * time.Hour, "x", false, false, nothing, true}, {3 * time.Hour, "", false, false, nothing, false},
			{4 * time.Hour, "x", false, false, nothing, true}, {5 * time.Hour, "x", false, false, drain, true}}},
	} {
		var s state
		for i, x := range c.steps {
			if x.drained {
				s.drained = true
			}
			if got := s.step(c.cfg, begin.Add(x.after), x.sick, x.refuses); got != x.want || (s.why != "") != x.degraded {
				t.Errorf("%s, step %d: action %d and degraded %q, want %d and %v", name, i, got, s.why, x.want, x.degraded)
			}
		}
	}
}

// fleet is a set of nodes that share a store, as agents do, with drains that take a
// while.
type fleet struct {
	t     *testing.T
	store *memstore.Store
	lease store.LeaseID
	mu    sync.Mutex
	away  int // number of nodes that drain now
	most  int
}

type member struct {
	*fleet
	id      holdfast.NodeID
	r       *Rotation
	changed chan struct{}
	mu      sync.Mutex
	refuses bool
	drains  int
	broken  error // the error of each drain
}

func (f *fleet) join(ctx context.Context, running *sync.WaitGroup, id holdfast.NodeID, cfg Config) *member {
	m := &member{fleet: f, id: id, changed: make(chan struct{}, 1)}
	m.r = New(cfg, id, m, nil, slog.New(slog.DiscardHandler))
	m.publish(ctx)
	running.Go(func() {
		if err := m.r.Run(ctx); err != nil {
			f.t.Error(err)
		}
	})
	running.Go(func() { // a changed record is written shortly afterwards
		for {
			select {
			case <-m.changed:
				time.Sleep(100 * time.Millisecond)
				m.publish(ctx)
			case <-ctx.Done():
				return
			}
		}
	})
	return m
}

func (m *member) publish(ctx context.Context) {
	n := holdfast.Node{ID: m.id, Draining: m.Refuses()}
	n.Degraded, n.DegradedSince = m.r.Degraded()
	if err := m.store.PutNode(ctx, n, m.lease); err != nil && ctx.Err() == nil {
		m.t.Error(err)
	}
}

func (m *member) Fleet(ctx context.Context) ([]holdfast.Node, error) { return m.store.Nodes(ctx) }

func (m *member) Changed() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

func (m *member) Refuses() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.refuses
}

func (m *member) Turn(ctx context.Context) (func(context.Context) error, bool, error) {
	n, err := m.store.TakeNote(ctx, "turn", []byte(m.id), m.lease)
	if errors.Is(err, store.ErrTaken) {
		return nil, false, nil
	}
	return func(ctx context.Context) error { return m.store.DropNote(ctx, n) }, err == nil, err
}

func (m *member) Drain(context.Context) error {
	m.fleet.mu.Lock()
	m.away++
	m.most = max(m.most, m.away)
	m.fleet.mu.Unlock()
	time.Sleep(10 * time.Second)
	m.fleet.mu.Lock()
	m.away--
	m.fleet.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refuses = true
	m.drains++
	return m.broken
}

func (m *member) Return() error {
	m.mu.Lock()
	m.refuses = false
	m.mu.Unlock()
	m.Changed()
	return nil
}

func (m *member) drained() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.drains
}

// run runs n nodes in fake time.
func run(t *testing.T, n int, cfg Config, do func(all []*member)) {
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{t: t, store: memstore.New(100)}
		var err error
		if f.lease, _, err = f.store.Grant(t.Context(), 1000*time.Hour); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		var all []*member
		for i := range n {
			all = append(all, f.join(ctx, &running, holdfast.NodeID(fmt.Sprint("n", i)), cfg))
		}
		do(all)
		cancel()
		running.Wait()
		if err := f.store.Revoke(context.Background(), f.lease); err != nil {
			t.Error(err)
		}
		if f.most > 1 {
			t.Errorf("%d nodes drained at the same time", f.most)
		}
	})
}

func sick() []watch.Open { return []watch.Open{open("dying-cgroups", rule.Critical, fact.Subject{})} }

// All nodes of a fleet become sick. They are drained one after the other, up to the
// share. A node that recovers returns to rotation, and then the next may drain.
func TestFleetOfSickNodes(t *testing.T) {
	cfg := auto()
	run(t, 6, cfg, func(all []*member) { // a third of six is two
		for _, m := range all {
			m.r.Found(sick())
			time.Sleep(time.Second)
		}
		time.Sleep(cfg.DrainAfter + 10*time.Minute)
		count := func() (n int) {
			for _, m := range all {
				if m.Refuses() {
					n++
				}
			}
			return n
		}
		if n := count(); n != 2 || all[0].drained() != 1 || all[1].drained() != 1 {
			t.Errorf("%d of 6 nodes are drained", n)
		}
		nodes, err := all[0].Fleet(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range nodes {
			if n.Degraded == "" {
				t.Errorf("%s is not degraded", n.ID)
			}
		}
		all[0].r.Found(nil)
		time.Sleep(cfg.Recover + 3*time.Minute)
		if all[0].Refuses() || count() != 2 || all[2].drained() != 1 {
			t.Errorf("recovered node refuses sessions: %v; %d nodes are drained, the next one %d times", all[0].Refuses(), count(), all[2].drained())
		}
		if why, _ := all[0].r.Degraded(); why != "" {
			t.Errorf("the recovered node is still degraded: %s", why)
		}
	})
}

// With drain off nothing is drained, and a single node has no other node to drain to.
func TestNoDrainUnlessConfigured(t *testing.T) {
	for n, cfg := range map[int]Config{3: DefaultConfig(), 1: auto()} {
		run(t, n, cfg, func(all []*member) {
			for _, m := range all {
				m.r.Found(sick())
			}
			time.Sleep(3 * time.Hour)
			for _, m := range all {
				if why, _ := m.r.Degraded(); m.drained() != 0 || why == "" {
					t.Errorf("%d nodes: %s was drained %d times, degraded %q", n, m.id, m.drained(), why)
				}
			}
		})
	}
}

// An unreachable store causes no drain and blocks no other component.
func TestUnreachableStore(t *testing.T) {
	cfg := auto()
	run(t, 3, cfg, func(all []*member) {
		all[0].r.Found(sick())
		time.Sleep(time.Minute)
		all[0].store.SetDown(true)
		time.Sleep(time.Hour)
		if all[0].drained() != 0 {
			t.Error("a node drained without a turn")
		}
		all[0].store.SetDown(false)
		all[0].Changed()
		time.Sleep(3 * time.Minute)
		if all[0].drained() != 1 {
			t.Errorf("with the store reachable again it drained %d times", all[0].drained())
		}
	})
}

// For any history of a host: a degraded node has been sick. The node is never drained
// while it refuses sessions or after the operator returned it to rotation. It returns to
// rotation only if the doctor drained it.
func TestStateInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s state
		now := time.Now()
		refuses, byDoctor, sickAt := false, false, time.Time{}
		for range 200 {
			now = now.Add(time.Duration(rapid.IntRange(1, 300).Draw(t, "seconds")) * time.Second)
			sick := rapid.SampledFrom([]string{"", "", "x", "y"}).Draw(t, "sick")
			if sick != "" {
				sickAt = now
			}
			if rapid.IntRange(0, 20).Draw(t, "person") == 0 {
				refuses, byDoctor = !refuses, false
			}
			was := refuses
			switch s.step(auto(), now, sick, refuses) {
			case drain:
				if was || sick == "" || now.Sub(s.since) < auto().DrainAfter {
					t.Fatalf("drained while refusing %v, sick %q since %v", was, sick, now.Sub(s.since))
				}
				refuses, byDoctor, s.drained = true, true, true
			case undrain:
				if !byDoctor || now.Sub(sickAt) < auto().Recover {
					t.Fatalf("returned to rotation: drained by the doctor %v, sick %v ago", byDoctor, now.Sub(sickAt))
				}
				refuses, byDoctor = false, false
			}
			if (s.why != "") != (!sickAt.IsZero() && now.Sub(sickAt) < auto().Recover) {
				t.Fatalf("degraded %q, sick %v ago", s.why, now.Sub(sickAt))
			}
		}
	})
}
