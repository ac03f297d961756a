package session

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/vethnet"
	"holdfast/internal/sessions/kill"
	"holdfast/internal/sessions/pool/network"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// pooled returns a template with a network of the agent's. Its server returns its host name.
func pooled() Template {
	return Template{
		Name: "pooled", Image: labtest.Busybox, Command: []string{"httpd", "-f", "-p", "8080", "-h", "/etc"}, Port: 8080, Pooled: true,
		Ready: Readiness{HTTPPath: "/hostname", Timeout: 20 * time.Second},
	}
}

func (n *node) shell(t *testing.T, r holdfast.Route, script string) string {
	t.Helper()
	var out bytes.Buffer
	if code, err := n.engine.Exec(t.Context(), r.ContainerID, engine.Exec{Command: []string{"sh", "-c", script}, Stdout: &out, Stderr: &out}); err != nil || code != 0 {
		t.Fatalf("%s: code %d, %v: %s", script, code, err, &out)
	}
	return strings.TrimSpace(out.String())
}

// reaches reports whether a server listens at the address of a route.
func reaches(r holdfast.Route) error {
	conn, err := net.DialTimeout("tcp", r.Address, 5*time.Second)
	if err != nil {
		return err
	}
	return conn.Close()
}

// holderKiller is an engine that ends, when a session's container starts for the first
// time, the container whose network it joins. An engine that is restarted does so.
type holderKiller struct {
	engine.Engine
	once   sync.Once
	holder atomic.Value // of the container that was created last
}

func (h *holderKiller) Create(ctx context.Context, s engine.Spec) (string, error) {
	id, _ := strings.CutPrefix(s.Network, "container:")
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

// nets is a node's pool of networks of Holdfast's on the package's engine.
type nets struct {
	*network.Pool
	net  *vethnet.Net
	stop func()
}

// newNets creates a pool in dir. fill starts it.
func newNets(t *testing.T, dir string, holders int) *nets {
	t.Helper()
	if labtest.OnContainerd() {
		t.Skip("there all networks are Holdfast's")
	}
	n, err := vethnet.New(vethnet.Config{Bridge: "sessionnets", Subnet: netip.MustParsePrefix("10.98.0.0/24"), Dir: filepath.Join(dir, "bridge")})
	if err != nil {
		t.Fatal(err)
	}
	opener, err := kill.NewOpener()
	if err != nil {
		t.Fatal(err)
	}
	o := &nets{net: n, Pool: network.New(network.Config{Node: holdfast.NodeID(t.Name()), Holders: holders, Dir: dir},
		network.Deps{Engine: openEngine(t), Opener: opener, Net: n, Metrics: network.NewMetrics(prometheus.NewRegistry()), Log: testLog(t)})}
	o.stop = func() {}
	t.Cleanup(func() {
		o.stop()
		if err := o.End(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return o
}

func (o *nets) fill(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { _ = o.Run(ctx) })
	o.stop = sync.OnceFunc(func() { cancel(); all.Wait() })
	poll.Until(t, "the holders are ready", func() bool { n := o.Counts(); return n.Free > 0 && n.Free == n.Holders })
}

// none waits until no network is left.
func (o *nets) none(t *testing.T) {
	t.Helper()
	poll.Until(t, "no network is left", func() bool { list, err := o.net.Addresses(); return err == nil && len(list) == 0 })
}

// Sessions get networks of Holdfast's by way of one holder, and the next agent takes them
// over.
func TestSessionsInNetworks(t *testing.T) {
	dir := t.TempDir()
	own := newNets(t, dir, 1)
	n := newNode(t, setup{nets: own, cfg: Config{Templates: []Template{pooled()}, Boots: 1}})
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
	next := newNets(t, dir, 1)
	m := newNode(t, setup{store: n.store, nets: next, cfg: Config{Templates: []Template{pooled()}, Boots: 1}})
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
	own := newNets(t, t.TempDir(), 2)
	own.fill(t)
	n := newNode(t, setup{nets: own, engine: &holderKiller{Engine: openEngine(t)}, cfg: Config{Templates: []Template{pooled()}}})
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
	if strings.HasPrefix(s.Network, "container:") {
		s.Network = "none"
	}
	return a.Engine.Create(ctx, s)
}

// A session whose container is in another network is not served.
func TestContainerInAnotherNetworkIsNotServed(t *testing.T) {
	own := newNets(t, t.TempDir(), 1)
	own.fill(t)
	n := newNode(t, setup{nets: own, engine: astray{openEngine(t)}, cfg: Config{Templates: []Template{pooled()}}})
	if _, _, err := n.Acquire(t.Context(), "alice", ""); !errors.Is(err, network.ErrElsewhere) {
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
	own := newNets(t, t.TempDir(), 1)
	own.fill(t)
	late := &lateStart{Engine: openEngine(t), ids: make(chan string, 1)}
	defer late.all.Wait()
	n := newNode(t, setup{nets: own, engine: late, cfg: Config{Templates: []Template{pooled()}}})
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

// Each init step has a network of its own, which ends with it. A step that fails ends its
// network, too.
func TestStepsInNetworks(t *testing.T) {
	own := newNets(t, t.TempDir(), 1)
	own.fill(t)
	dir := t.TempDir()
	tmpl := pooled()
	tmpl.Mounts = []engine.Mount{{Type: "bind", Source: dir, Target: "/data"}}
	address := shell("address", "ip -4 -o addr show eth0 > /data/address; cat /etc/hostname > /data/hostname")
	tmpl.Steps = []Step{address, shell("short", "true")}
	broken := tmpl
	broken.Name, broken.Steps = "broken", []Step{shell("broken", "false")}
	n := newNode(t, setup{nets: own, cfg: Config{Templates: []Template{tmpl, broken}, Boots: 1}})
	r := n.serve(t, "alice")
	for file, want := range map[string]string{"address": " 10.98.0.", "hostname": "alice"} {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil || !strings.Contains(string(text), want) || strings.Contains(string(text), strings.TrimSuffix(r.Address, ":8080")+"/") {
			t.Errorf("the step's %s is %s, %v; the session is at %s", file, text, err, r.Address)
		}
	}
	if c := own.Counts(); c.Used != 1 || c.Free != 1 {
		t.Errorf("with one session: %+v", c)
	}
	if _, _, err := n.Acquire(t.Context(), "bob", "broken"); err == nil {
		t.Error("the step fails, and the session boots")
	}
	poll.Until(t, "the failed step's network ends", func() bool { c := own.Counts(); return c.Used == 1 && c.Free == 1 })
	if _, err := n.Stop(t.Context(), "alice"); err != nil {
		t.Fatal(err)
	}
	own.none(t)
}

// away is an engine that lacks an image, and calls pulling before each pull.
type away struct {
	engine.Engine
	pulling func()
}

func (a away) Pull(ctx context.Context, ref string, o engine.PullOptions) iter.Seq2[engine.PullEvent, error] {
	a.pulling()
	return a.Engine.Pull(ctx, ref, o)
}

// A boot that waits for its image has no network and no holder meanwhile.
func TestPullHasNoHolder(t *testing.T) {
	own := newNets(t, t.TempDir(), 1)
	own.fill(t)
	var during network.Counts
	tmpl := pooled()
	tmpl.Image = "127.0.0.1:1/none:1"
	n := newNode(t, setup{nets: own, engine: away{openEngine(t), func() { during = own.Counts() }}, cfg: Config{Templates: []Template{tmpl}}})
	if _, _, err := n.Acquire(t.Context(), "alice", ""); err == nil {
		t.Error("the session boots without its image")
	}
	if during.Free != 1 || during.Used != 0 {
		t.Errorf("during the pull: %+v", during)
	}
	own.none(t)
}

// Warm containers are in networks of Holdfast's, which are those of the sessions that claim
// them. The next agent takes over the network of a claimed one, and ends the others.
func TestWarmContainersInNetworks(t *testing.T) {
	dir := t.TempDir()
	tmpl := warmTemplate(t, "alice", "bob", "carol")
	tmpl.Pooled = true
	own := newNets(t, dir, 1)
	own.fill(t)
	warm := newWarmsIn(t, openEngine(t), own, t.Name(), tmpl, 2)
	n := newNode(t, setup{nets: own, warm: warm, cfg: Config{Templates: []Template{tmpl}, Boots: 1}})
	warm.fill(t)
	r := n.serve(t, "alice")
	n.isItself(t, r)
	if !n.isWarm(t, r) || !strings.HasPrefix(r.Address, "10.98.0.") {
		t.Errorf("alice is at %s; she has a warm container: %v", r.Address, n.isWarm(t, r))
	}
	warm.full(t)
	n.isItself(t, n.serve(t, "bob"))
	if _, err := n.Stop(t.Context(), "bob"); err != nil {
		t.Fatal(err)
	}
	warm.full(t)
	if c := own.Counts(); c.Used != 3 || c.Free != 1 { // two wait
		t.Errorf("with one session: %+v", c)
	}
	n.end()
	warm.stop()
	own.stop() // as if the agent were killed
	next := newNets(t, dir, 1)
	m := newNode(t, setup{store: n.store, nets: next, cfg: Config{Templates: []Template{tmpl}, Boots: 1}})
	next.fill(t)
	if again := m.serve(t, "alice"); again.ContainerID != r.ContainerID || reaches(again) != nil {
		t.Errorf("alice is at %+v (%v), was at %+v", again, reaches(again), r)
	}
	if c := next.Counts(); c.Used != 1 {
		t.Errorf("the next agent: %+v", c)
	}
	if _, err := m.Stop(t.Context(), "alice"); err != nil {
		t.Fatal(err)
	}
	next.none(t)
}

// stubborn is an engine that starts a container late, and once refuses to remove it.
type stubborn struct {
	lateStart
	refused atomic.Bool
}

func (s *stubborn) Remove(ctx context.Context, id string) error {
	if s.refused.CompareAndSwap(false, true) {
		return errLate
	}
	return s.Engine.Remove(ctx, id)
}

// A warm container whose start fails keeps its holder until it is removed.
func TestWarmContainerThatFailsKeepsItsHolder(t *testing.T) {
	tmpl := warmTemplate(t)
	tmpl.Pooled = true
	own := newNets(t, t.TempDir(), 1)
	own.fill(t)
	e := &stubborn{lateStart: lateStart{Engine: openEngine(t), ids: make(chan string, 1)}}
	defer e.all.Wait()
	warm := newWarmsIn(t, e, own, t.Name(), tmpl, 1)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { _ = warm.Run(ctx) })
	defer all.Wait()
	defer cancel()
	id := <-e.ids
	poll.Until(t, "a removal was refused", e.refused.Load)
	if own.Counts().Free != 0 {
		t.Error("the holder is free while its container exists")
	}
	warm.busy.Store(true) // no second one
	poll.Until(t, "the holder is free", func() bool { return own.Counts().Free == 1 })
	if c, err := e.Inspect(t.Context(), id); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("a session may have the holder, but there is %s, %s, %v", c.Name, c.State, err)
	}
	own.none(t)
}
