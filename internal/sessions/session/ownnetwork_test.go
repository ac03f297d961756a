package session

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/vethnet"
	"holdfast/internal/sessions/kill"
	"holdfast/internal/sessions/pool/switched"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// ownNets is a node's pool of networks of Holdfast's on the package's engine.
type ownNets struct {
	*switched.Pool
	net  *vethnet.Net
	stop func()
}

func (o ownNets) Take(hostname string) (OwnNetwork, bool) {
	j, ok := o.Pool.Take(hostname)
	return OwnNetwork(j), ok
}

// newOwnNets creates a pool in dir. fill starts it.
func newOwnNets(t *testing.T, dir string, holders int) *ownNets {
	t.Helper()
	if labtest.OnContainerd() {
		t.Skip("there all networks are Holdfast's")
	}
	n, err := vethnet.New(vethnet.Config{Bridge: "ownnets", Subnet: netip.MustParsePrefix("10.98.0.0/24"), Dir: filepath.Join(dir, "bridge")})
	if err != nil {
		t.Fatal(err)
	}
	opener, err := kill.NewOpener()
	if err != nil {
		t.Fatal(err)
	}
	o := &ownNets{net: n, Pool: switched.New(switched.Config{Node: holdfast.NodeID(t.Name()), Holders: holders, Dir: dir},
		switched.Deps{Engine: openEngine(t), Opener: opener, Net: n, Metrics: switched.NewMetrics(prometheus.NewRegistry()), Log: testLog(t)})}
	o.stop = func() {}
	t.Cleanup(func() {
		o.stop()
		if err := o.End(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return o
}

func (o *ownNets) fill(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { _ = o.Run(ctx) })
	o.stop = sync.OnceFunc(func() { cancel(); all.Wait() })
	poll.Until(t, "the holders are ready", func() bool { n := o.Counts(); return n.Free > 0 && n.Free == n.Holders })
}

// none waits until no network is left.
func (o *ownNets) none(t *testing.T) {
	t.Helper()
	poll.Until(t, "no network is left", func() bool { list, err := o.net.Addresses(); return err == nil && len(list) == 0 })
}

// Sessions get networks of Holdfast's by way of one holder, and the next agent takes them
// over.
func TestSessionsInOwnNetworks(t *testing.T) {
	dir := t.TempDir()
	own := newOwnNets(t, dir, 1)
	n := newNode(t, setup{own: own, cfg: Config{Templates: []Template{pooled()}, Boots: 1}})
	own.fill(t)
	routes := map[holdfast.SessionKey]holdfast.Route{}
	for _, key := range []holdfast.SessionKey{"alice", "bob"} {
		r := n.serve(t, key)
		routes[key] = r
		if !strings.HasPrefix(r.Address, "10.98.0.") {
			t.Errorf("%s is at %s", key, r.Address)
		}
		for script, want := range map[string]string{
			"hostname": string(key), "cat /etc/hostname": string(key), "echo $HOSTNAME": string(key),
			"grep -w " + string(key) + " /etc/hosts | cut -f1": strings.TrimSuffix(r.Address, ":8080"),
		} {
			if got := n.shell(t, r, script); got != want {
				t.Errorf("%s in %s: %q, wanted %q", script, key, got, want)
			}
		}
	}
	if c := own.Counts(); c.Used != 2 || c.Free != 1 || c.Holders != 1 {
		t.Errorf("with two sessions: %+v", c)
	}
	n.end()
	own.stop() // as if the agent were killed: its containers stay
	if err := n.engine.Remove(t.Context(), routes["bob"].ContainerID); err != nil {
		t.Fatal(err)
	}
	next := newOwnNets(t, dir, 1)
	m := newNode(t, setup{store: n.store, own: next, cfg: Config{Templates: []Template{pooled()}, Boots: 1}})
	next.fill(t)
	if r := m.serve(t, "alice"); r.ContainerID != routes["alice"].ContainerID || reaches(r) != nil {
		t.Errorf("alice is at %+v (%v), was at %+v", r, reaches(r), routes["alice"])
	}
	if r := m.serve(t, "bob"); r.Epoch <= routes["bob"].Epoch || reaches(r) != nil {
		t.Errorf("bob is at %+v, was at %+v", r, routes["bob"])
	}
	for key := range routes {
		if _, err := m.Stop(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	if c := next.Counts(); c.Used != 0 {
		t.Errorf("without sessions: %+v", c)
	}
	next.none(t)
}

// A request waits for another boot if its boot's holder is lost.
func TestHolderIsLostDuringABoot(t *testing.T) {
	own := newOwnNets(t, t.TempDir(), 2)
	own.fill(t)
	n := newNode(t, setup{own: own, engine: &holderKiller{Engine: openEngine(t)}, cfg: Config{Templates: []Template{pooled()}}})
	if err := reaches(n.serve(t, "alice")); err != nil {
		t.Error(err)
	}
	if got := n.containers(t); len(got) != 1 {
		t.Errorf("%d containers", len(got))
	}
}

// astray is an engine that starts a container in another network than the one that it is to
// join.
type astray struct{ engine.Engine }

func (a astray) Create(ctx context.Context, s engine.Spec) (string, error) {
	if strings.HasPrefix(s.Network, joins) {
		s.Network = "none"
	}
	return a.Engine.Create(ctx, s)
}

// A session whose container is in another network is not served.
func TestContainerInAnotherNetworkIsNotServed(t *testing.T) {
	own := newOwnNets(t, t.TempDir(), 1)
	own.fill(t)
	n := newNode(t, setup{own: own, engine: astray{openEngine(t)}, cfg: Config{Templates: []Template{pooled()}}})
	if _, _, err := n.Acquire(t.Context(), "alice", ""); !errors.Is(err, switched.ErrElsewhere) {
		t.Errorf("the session boots: %v", err)
	}
	n.empty(t)
	own.none(t)
	if c := own.Counts(); c.Free != 1 || c.Used != 0 {
		t.Errorf("afterwards: %+v", c)
	}
}

// lateStart is an engine that answers a start with an error, and starts the container
// nevertheless.
type lateStart struct {
	engine.Engine
	ids chan string
	all sync.WaitGroup
}

var errLate = errors.New("the engine did not answer in time")

func (l *lateStart) Start(_ context.Context, id string) error {
	l.ids <- id
	l.all.Go(func() { _ = l.Engine.Start(context.Background(), id) })
	return errLate
}

// A start that goes on after its error keeps its holder until its container is removed, so
// that it joins no other session's network.
func TestLateStartKeepsItsHolder(t *testing.T) {
	own := newOwnNets(t, t.TempDir(), 1)
	own.fill(t)
	late := &lateStart{Engine: openEngine(t), ids: make(chan string, 1)}
	defer late.all.Wait()
	n := newNode(t, setup{own: own, engine: late, cfg: Config{Templates: []Template{pooled()}}})
	if _, _, err := n.Acquire(t.Context(), "alice", ""); !errors.Is(err, errLate) {
		t.Errorf("the session boots: %v", err)
	}
	id := <-late.ids
	poll.Until(t, "the holder is free", func() bool { return own.Counts().Free == 1 })
	if c, err := late.Inspect(t.Context(), id); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("another session may have the holder, but there is %s, %s, %v", c.Name, c.State, err)
	}
	own.none(t)
}
