package session

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/sessions/kill"
	"holdfast/internal/sessions/pool"
	"holdfast/internal/sessions/pool/network"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// pooled returns a template with a ready network. Its server returns its host name.
func pooled() Template {
	return Template{
		Name: "pooled", Image: labtest.Busybox, Command: []string{"httpd", "-f", "-p", "8080", "-h", "/etc"}, Port: 8080, Pooled: true,
		Ready: Readiness{HTTPPath: "/hostname", Timeout: 20 * time.Second},
	}
}

// nets is a node's pool of networks on the package's engine.
type nets struct {
	*network.Pool
	engine engine.Engine
	node   string
	busy   atomic.Bool
	stop   func()
}

// newNets creates a pool. fill starts it.
func newNets(t *testing.T, size int) *nets {
	t.Helper()
	return newNetsOn(t, openEngine(t), size)
}

// newNetsOn is newNets on an engine.
func newNetsOn(t *testing.T, e engine.Engine, size int) *nets {
	t.Helper()
	return newNetsWith(t, e, nil, size)
}

// newNetsWith is newNetsOn with a deadman, or without one for nil.
func newNetsWith(t *testing.T, e engine.Engine, dead pool.Deadman, size int) *nets {
	t.Helper()
	n := &nets{engine: e, node: strings.ReplaceAll(t.Name(), "/", "-")}
	opener, err := kill.NewOpener()
	if err != nil {
		t.Fatal(err)
	}
	n.Pool = network.New(network.Config{Node: holdfast.NodeID(n.node), Size: size}, network.Deps{
		Engine: n.engine, Opener: opener, Deadman: dead, Busy: n.busy.Load, Metrics: network.NewMetrics(prometheus.NewRegistry()), Log: testLog(t),
	})
	n.stop = func() {}
	t.Cleanup(func() {
		n.stop()
		if err := n.End(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return n
}

// fill runs the pool until it is full. It comes after an adoption, which ends
// unclaimed containers.
func (n *nets) fill(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = n.Run(ctx) }()
	n.stop = func() { cancel(); <-ended }
	n.full(t)
}

func (n *nets) full(t *testing.T) {
	t.Helper()
	poll.Until(t, "the networks are ready", func() bool { ready, _, size := n.Counts(); return ready == size })
}

// holders returns the ids of the containers that hold networks.
func (n *nets) holders(t *testing.T) map[string]bool {
	t.Helper()
	list, err := n.engine.List(context.Background(), map[string]string{network.Label: n.node})
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	for _, c := range list {
		ids[c.ID] = true
	}
	return ids
}

// holder returns the holder of the network that a session's container has joined, or ""
// if the container has a network of its own.
func (n *node) holder(t *testing.T, r holdfast.Route) string {
	t.Helper()
	c, err := n.engine.Inspect(t.Context(), r.ContainerID)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Addresses) == 0 || !strings.HasPrefix(r.Address, c.Addresses[0]+":") {
		t.Errorf("the route to %s leads to %s; its container has %v", r.Key, r.Address, c.Addresses)
	}
	id, _ := strings.CutPrefix(c.Network, joins)
	return id
}

func (n *node) shell(t *testing.T, r holdfast.Route, script string) string {
	t.Helper()
	var out bytes.Buffer
	if code, err := n.engine.Exec(t.Context(), r.ContainerID, engine.Exec{Command: []string{"sh", "-c", script}, Stdout: &out, Stderr: &out}); err != nil || code != 0 {
		t.Fatalf("%s: code %d, %v: %s", script, code, err, &out)
	}
	return strings.TrimSpace(out.String())
}

func TestSessionsJoinUnusedReadyNetworks(t *testing.T) {
	pool := newNets(t, 2)
	pool.fill(t)
	n := newNode(t, setup{nets: pool, cfg: Config{Templates: []Template{pooled()}}})
	pool.busy.Store(true) // the pool creates nothing meanwhile
	routes := map[string]holdfast.Route{}
	seen := map[string]bool{}
	for _, key := range []holdfast.SessionKey{"alice", "bob", "carol"} {
		r := n.serve(t, key)
		routes[string(key)] = r
		for script, want := range map[string]string{
			"hostname": string(key), "cat /etc/hostname": string(key), "echo $HOSTNAME": string(key),
			"grep -w " + string(key) + " /etc/hosts | cut -f1": strings.TrimSuffix(r.Address, ":8080"),
		} {
			if got := n.shell(t, r, script); got != want {
				t.Errorf("%s in %s: %q, wanted %q", script, key, got, want)
			}
		}
		holder := n.holder(t, r)
		if key == "carol" && holder != "" && holder != "default" && holder != "bridge" {
			t.Errorf("with no network ready carol has %s's", holder)
		}
		if key != "carol" && (!pool.holders(t)[holder] || seen[holder]) {
			t.Errorf("%s is in the network of %q, after %v", key, holder, seen)
		}
		seen[holder] = true
	}
	if ready, used, _ := pool.Counts(); ready != 0 || used != 2 {
		t.Errorf("%d networks are ready, %d used", ready, used)
	}
	if _, err := n.Stop(t.Context(), "alice"); err != nil {
		t.Fatal(err)
	}
	pool.busy.Store(false)
	pool.full(t)
	poll.Until(t, "alice's network is gone", func() bool { _, used, _ := pool.Counts(); return used == 1 && len(pool.holders(t)) == 3 })
	again := n.serve(t, "alice")
	if holder := n.holder(t, again); seen[holder] || !pool.holders(t)[holder] {
		t.Errorf("alice is in the network of %q again, after %v", holder, seen)
	}
	// A session ends with its network, because it would be unreachable.
	if err := n.engine.Kill(t.Context(), n.holder(t, routes["bob"])); err != nil {
		t.Fatal(err)
	}
	<-routes["bob"].Left
	if err := reaches(n.serve(t, "bob")); err != nil {
		t.Error(err)
	}
	for _, key := range []holdfast.SessionKey{"alice", "bob", "carol"} {
		if _, err := n.Stop(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	n.empty(t)
	poll.Until(t, "no network is used", func() bool {
		ready, used, _ := pool.Counts()
		return used == 0 && ready == 2 && len(pool.holders(t)) == 2
	})
}

// reaches reports whether a server listens at the address of a route.
func reaches(r holdfast.Route) error {
	conn, err := net.DialTimeout("tcp", r.Address, 5*time.Second)
	if err != nil {
		return err
	}
	return conn.Close()
}

func TestNextAgentTakesReadyNetworksOverThatSessionsHave(t *testing.T) {
	pool := newNets(t, 1)
	pool.fill(t)
	n := newNode(t, setup{nets: pool, cfg: Config{Templates: []Template{pooled()}}})
	alice := n.serve(t, "alice")
	pool.full(t)
	bob := n.serve(t, "bob")
	pool.full(t)
	before := pool.holders(t)
	n.end()
	pool.stop() // as if the agent were killed: its containers stay

	// Meanwhile bob's network disappears.
	if err := n.engine.Remove(t.Context(), n.holder(t, bob)); err != nil {
		t.Fatal(err)
	}
	// The deadman knows all containers that ran. Those that this agent adopts are not
	// unconfirmed.
	dead := &unconfirmed{left: maps.Clone(before)}
	next := newNetsWith(t, openEngine(t), dead, 1)
	m := newNode(t, setup{store: n.store, nets: next, dead: dead, cfg: Config{Templates: []Template{pooled()}}})
	if r := m.serve(t, "alice"); r.Epoch != alice.Epoch || r.ContainerID != alice.ContainerID || reaches(r) != nil {
		t.Errorf("alice is at %+v (%v), was at %+v", r, reaches(r), alice)
	}
	if r := m.serve(t, "bob"); r.Epoch <= bob.Epoch || reaches(r) != nil {
		t.Errorf("bob has lost his network and is at %+v, was at %+v", r, bob)
	}
	next.fill(t)
	holder := m.holder(t, alice)
	poll.Until(t, "the ready networks of the last agent are gone", func() bool {
		now := next.holders(t)
		for id := range before {
			if now[id] != (id == holder) {
				return false
			}
		}
		return len(now) == 2
	})
	if _, err := m.Stop(t.Context(), "alice"); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "alice's network is gone", func() bool { return !next.holders(t)[holder] })
}

// unconfirmed is a deadman with the announcements of an earlier agent.
type unconfirmed struct {
	mu   sync.Mutex
	left map[string]bool // by id
}

func (h *unconfirmed) Forget(ids ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range ids {
		delete(h.left, id)
	}
}

func (h *unconfirmed) Expect(id string) error { h.Forget(id); return nil }

func (h *unconfirmed) Hold(t *kill.Target) error { return h.Expect(t.ID) }

func (h *unconfirmed) Unconfirmed() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Keys(h.left))
}

// holderKiller is an engine that ends, when a session's container starts for the first
// time, the container whose network it joins. An engine that is restarted does so.
type holderKiller struct {
	engine.Engine
	once   sync.Once
	holder atomic.Value // of the container that was created last
}

func (h *holderKiller) Create(ctx context.Context, s engine.Spec) (string, error) {
	id, _ := strings.CutPrefix(s.Network, joins)
	h.holder.Store(id)
	return h.Engine.Create(ctx, s)
}

func (h *holderKiller) Start(ctx context.Context, id string) error {
	var err error
	h.once.Do(func() { err = h.Engine.Kill(ctx, h.holder.Load().(string)) })
	if err != nil {
		return err
	}
	return h.Engine.Start(ctx, id)
}

// A request waits for another boot if its boot's ready network is lost.
func TestNetworkIsLostDuringABoot(t *testing.T) {
	pool := newNets(t, 2)
	pool.fill(t)
	n := newNode(t, setup{nets: pool, engine: &holderKiller{Engine: openEngine(t)}, cfg: Config{Templates: []Template{pooled()}}})
	if err := reaches(n.serve(t, "alice")); err != nil {
		t.Error(err)
	}
	if got := n.containers(t); len(got) != 1 {
		t.Errorf("%d containers", len(got))
	}
}

// interrupter is an engine that once interrupts a boot.
type interrupter struct {
	engine.Engine
	start   atomic.Bool // the start fails
	away    atomic.Bool // the container ends, and the engine is away
	starts  atomic.Bool // the container ends, and the engine accepts connections, and does not answer yet
	signals atomic.Bool // the engine ends the container, and still answers
	ends    atomic.Bool // the container ends, and the engine answers once that it runs, and then no more
	stale   atomic.Pointer[engine.Container]
	takes   atomic.Bool // the engine takes the container's network away, and then ends the container
	until   atomic.Int64
	done    atomic.Int32 // interruptions
}

func (i *interrupter) Start(ctx context.Context, id string) error {
	if i.start.CompareAndSwap(true, false) {
		i.done.Add(1)
		return fmt.Errorf("start: %w", engine.ErrInterrupted)
	}
	return i.Engine.Start(ctx, id)
}

func (i *interrupter) Inspect(ctx context.Context, id string) (engine.Container, error) {
	if away := time.Until(time.Unix(0, i.until.Load())); away > 0 {
		if !i.starts.Load() && !i.ends.Load() {
			return engine.Container{}, fmt.Errorf("inspect: %w", holdfast.ErrEngine)
		}
		if c := i.stale.Swap(nil); c != nil {
			return *c, nil
		}
		if !sleep(ctx, away) {
			return engine.Container{}, ctx.Err()
		}
	}
	c, err := i.Engine.Inspect(ctx, id)
	switch {
	case !c.Running():
	case i.signals.CompareAndSwap(true, false):
		i.done.Add(1)
		err = i.Engine.Kill(ctx, id)
	case i.takes.CompareAndSwap(true, false):
		i.done.Add(1)
		c.Addresses = nil
		time.AfterFunc(exitTimeout/10, func() { _ = i.Engine.Kill(context.WithoutCancel(ctx), id) })
	case i.away.CompareAndSwap(true, false), (i.starts.Load() || i.ends.Load()) && i.until.Load() == 0:
		i.done.Add(1)
		if i.ends.Load() {
			i.stale.Store(&c)
		}
		i.until.Store(time.Now().Add(exitTimeout + time.Second).UnixNano())
		err = i.Engine.Kill(ctx, id)
	}
	return c, err
}

// A request waits for another boot if the engine ends within its boot.
func TestEngineInterruptsABoot(t *testing.T) {
	e := &interrupter{Engine: openEngine(t)}
	n := newNode(t, setup{engine: e})
	for key, how := range map[holdfast.SessionKey]*atomic.Bool{"start": &e.start, "away": &e.away, "starts": &e.starts, "signals": &e.signals, "ends": &e.ends, "takes": &e.takes} {
		e.until.Store(0)
		how.Store(true)
		if err := answers(n.serve(t, key)); err != nil || e.done.Swap(0) != 1 {
			t.Errorf("%s: %v", key, err)
		}
		how.Store(false)
	}
	if got := n.containers(t); len(got) != 6 {
		t.Errorf("%d containers", len(got))
	}
}

// TestBootThatFailsEndsItsNetwork: the container may have used the network.
func TestBootThatFailsEndsItsNetwork(t *testing.T) {
	pool := newNets(t, 1)
	pool.fill(t)
	before := pool.holders(t)
	broken := pooled()
	broken.Command = []string{"false"}
	n := newNode(t, setup{nets: pool, cfg: Config{Templates: []Template{broken}}})
	if _, _, err := n.Acquire(t.Context(), "alice", ""); err == nil {
		t.Fatal("the session boots")
	}
	n.empty(t)
	poll.Until(t, "another network is ready", func() bool {
		now := pool.holders(t)
		for id := range before {
			if now[id] {
				return false
			}
		}
		ready, used, _ := pool.Counts()
		return ready == 1 && used == 0 && len(now) == 1
	})
}
