package session

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
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
	"holdfast/internal/sessions/pool/container"
	"holdfast/test/lab/echoserver"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// warms is a pool of warm containers of one template on the package's engine.
type warms struct {
	*container.Pool
	engine engine.Engine
	dir    string
	busy   atomic.Bool
	stop   func()
}

func (w *warms) Take(template string) (WarmContainer, bool) {
	c := w.Pool.Take(template)
	return c, c != nil
}

// warmTemplate returns a template with a separate workspace for each key.
func warmTemplate(t *testing.T, keys ...string) Template {
	t.Helper()
	dir := t.TempDir()
	for _, key := range keys {
		if err := os.Mkdir(filepath.Join(dir, key), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, key, "whose"), []byte(key), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	w := web()
	w.Env = map[string]string{"NAME_OF": "I am {key}", "COLOUR": "blue"}
	w.Mounts = []engine.Mount{{Type: "bind", Source: dir + "/{key}", Target: "/work/space"}}
	return w
}

// newWarms returns a pool of n warm containers. fill starts it.
func newWarms(t *testing.T, node string, tmpl Template, most int) *warms {
	t.Helper()
	return newWarmsOn(t, openEngine(t), node, tmpl, most)
}

// newWarmsOn is newWarms on an engine.
func newWarmsOn(t *testing.T, e engine.Engine, node string, tmpl Template, most int) *warms {
	t.Helper()
	return newWarmsIn(t, e, nil, node, tmpl, most)
}

// newWarmsIn is newWarmsOn with networks of the agent's, or without for nil.
func newWarmsIn(t *testing.T, e engine.Engine, nets pool.Networks, node string, tmpl Template, most int) *warms {
	t.Helper()
	w := &warms{engine: e, dir: t.TempDir()}
	opener, err := kill.NewOpener()
	if err != nil {
		t.Fatal(err)
	}
	w.Pool = container.New(container.Config{Dir: w.dir, Templates: []container.Template{{
		Name: tmpl.Name, Image: tmpl.Image, Most: most, Joins: tmpl.Pooled, Await: tmpl.Await,
		Spec: func(name, dir, label string) engine.Spec {
			return tmpl.WarmSpec(holdfast.NodeID(node), name, dir, container.Dir, label)
		},
	}}}, container.Deps{
		Engine: w.engine, Opener: opener, Killer: &kill.Killer{}, Networks: nets, Busy: w.busy.Load,
		Metrics: container.NewMetrics(prometheus.NewRegistry()), Log: testLog(t),
	})
	w.stop = func() {}
	t.Cleanup(func() {
		w.stop()
		if err := w.End(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return w
}

// fill runs the pool until it is full. It comes after an adoption, which ends
// unclaimed containers.
func (w *warms) fill(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = w.Run(ctx) }()
	w.stop = func() { cancel(); <-ended }
	w.full(t)
}

func (w *warms) full(t *testing.T) {
	t.Helper()
	poll.Until(t, "the containers are warm", func() bool { c := w.Counts()[0]; return c.Ready == c.Want })
}

// reply is the answer of a session's server about itself.
func reply(t *testing.T, r holdfast.Route) echoserver.Reply {
	t.Helper()
	res, err := (&http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}).Get("http://" + r.Address + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var out echoserver.Reply
	if err := json.NewDecoder(res.Body).Decode(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

// inside returns a file of a session's container.
func (n *node) inside(t *testing.T, r holdfast.Route, file string) string {
	t.Helper()
	c, err := n.engine.Inspect(t.Context(), r.ContainerID)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/%s", c.Pid, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// isWarm reports whether a session's container was warm.
func (n *node) isWarm(t *testing.T, r holdfast.Route) bool {
	t.Helper()
	c, err := n.engine.Inspect(t.Context(), r.ContainerID)
	if err != nil {
		t.Fatal(err)
	}
	return c.Labels[LabelWarm] != ""
}

// isItself checks that a session's container has its own identity and workspace.
func (n *node) isItself(t *testing.T, r holdfast.Route) {
	t.Helper()
	got := reply(t, r)
	if got.Session != string(r.Key) || got.Epoch != strconv.Itoa(int(r.Epoch)) || got.Hostname != string(r.Key) {
		t.Errorf("%s at epoch %d reports that it is %q at %q on %q", r.Key, r.Epoch, got.Session, got.Epoch, got.Hostname)
	}
	if n.isWarm(t, r) && (got.Env["NAME_OF"] != "I am "+string(r.Key) || got.Env["COLOUR"] != "blue") {
		t.Errorf("%s received %v", r.Key, got.Env)
	}
	if whose := n.inside(t, r, "work/space/whose"); whose != string(r.Key) {
		t.Errorf("%s has the workspace of %q", r.Key, whose)
	}
}

func TestWarmContainersServeOneSessionEach(t *testing.T) {
	tmpl := warmTemplate(t, "alice", "bob", "carol")
	pool := newWarms(t, t.Name(), tmpl, 2)
	n := newNode(t, setup{warm: pool, cfg: Config{Templates: []Template{tmpl}}})
	pool.fill(t)
	pool.busy.Store(true) // the pool creates none meanwhile
	routes := map[holdfast.SessionKey]holdfast.Route{}
	for _, key := range []holdfast.SessionKey{"alice", "bob", "carol"} {
		r := n.serve(t, key)
		routes[key] = r
		n.isItself(t, r)
		if warm := n.isWarm(t, r); warm != (key != "carol") {
			t.Errorf("the container of %s is warm: %v", key, warm)
		}
	}
	// No container shows a trace of another: its mounts, identity, processes or
	// network.
	for _, key := range []holdfast.SessionKey{"alice", "bob"} {
		other := map[holdfast.SessionKey]string{"alice": "bob", "bob": "alice"}[key]
		for _, file := range []string{"proc/1/mountinfo", "run/holdfast/session.json", "etc/hostname", "etc/hosts", "proc/1/net/tcp"} {
			if text := n.inside(t, routes[key], file); strings.Contains(text, other) {
				t.Errorf("%s of %s shows a trace of %s:\n%s", file, key, other, text)
			}
		}
	}
	seen := map[string]string{}
	for key, r := range routes {
		c, err := n.engine.Inspect(t.Context(), r.ContainerID)
		if err != nil {
			t.Fatal(err)
		}
		for _, ns := range []string{"net", "mnt", "pid", "ipc", "uts"} {
			link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", c.Pid, ns))
			if err != nil || seen[link] != "" {
				t.Errorf("%s shares %s with %s, %v", key, link, seen[link], err)
			}
			seen[link] = string(key)
		}
	}
	for _, key := range []holdfast.SessionKey{"alice", "bob"} { // the doctor reads that path
		c, err := n.engine.Inspect(t.Context(), routes[key].ContainerID)
		if err != nil {
			t.Fatal(err)
		}
		told, err := os.ReadFile(filepath.Join(c.Labels[LabelIdentityDir], container.FileName))
		if err != nil || !strings.Contains(string(told), `"session":"`+string(key)+`"`) {
			t.Errorf("identity of %s: %s, %v", key, told, err)
		}
	}
	n.mu.Lock()
	for key, e := range n.sessions {
		if e.target.Key != key {
			t.Errorf("the kill target of %s has the key %q", key, e.target.Key)
		}
	}
	n.mu.Unlock()
	pool.busy.Store(false)
	pool.full(t)
	if report, err := n.Stop(t.Context(), "alice"); err != nil || len(report.Dead) != 1 || report.Dead[0] != routes["alice"].ContainerID {
		t.Fatalf("%+v, %v", report, err)
	}
	again := n.serve(t, "alice")
	n.isItself(t, again)
	if again.ContainerID == routes["alice"].ContainerID || !n.isWarm(t, again) {
		t.Errorf("alice is at %+v again", again)
	}
	// A container that dies while it waits serves no session.
	pool.full(t)
	for _, c := range n.containers(t) {
		if c.Labels[LabelWarm] != "" && c.ID != again.ContainerID && c.ID != routes["bob"].ContainerID {
			if err := n.engine.Remove(t.Context(), c.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := n.Stop(t.Context(), "carol"); err != nil {
		t.Fatal(err)
	}
	n.isItself(t, n.serve(t, "carol"))
}

// TestBurstOverAWarmPool: more sessions start at once than there are warm containers,
// a hundred to twenty. Each session gets a container of its own.
func TestBurstOverAWarmPool(t *testing.T) {
	labtest.NeedLong(t, "TestWarmContainersServeOneSessionEach has fewer sessions")
	const burst, most = 100, 20
	keys := []string{}
	for i := range burst {
		keys = append(keys, fmt.Sprintf("k%d", i))
	}
	tmpl := warmTemplate(t, keys...)
	pool := newWarms(t, t.Name(), tmpl, most)
	n := newNode(t, setup{warm: pool, cfg: Config{Templates: []Template{tmpl}}})
	pool.fill(t)
	var wg sync.WaitGroup
	routes := make([]holdfast.Route, len(keys))
	for i, key := range keys {
		wg.Go(func() { routes[i] = n.serve(t, holdfast.SessionKey(key)) })
	}
	wg.Wait()
	whose, warm := map[string]holdfast.SessionKey{}, 0
	for _, r := range routes {
		if other := whose[r.ContainerID]; other != "" {
			t.Errorf("%s and %s have the same container", r.Key, other)
		}
		whose[r.ContainerID] = r.Key
		n.isItself(t, r)
		if n.isWarm(t, r) {
			warm++
		}
	}
	if warm < most {
		t.Errorf("%d of %d warm containers were used", warm, most)
	}
}

func TestNextAgentKeepsWhatWasClaimedAndEndsWhatWaited(t *testing.T) {
	tmpl := warmTemplate(t, "alice", "bob")
	pool := newWarms(t, t.Name(), tmpl, 2)
	n := newNode(t, setup{warm: pool, cfg: Config{Templates: []Template{tmpl}}})
	pool.fill(t)
	alice := n.serve(t, "alice")
	pool.full(t)
	n.end()
	pool.stop() // as if the agent were killed: unclaimed containers stay frozen

	m := newNode(t, setup{store: n.store, cfg: Config{Templates: []Template{tmpl}}})
	if r := m.serve(t, "alice"); r.ContainerID != alice.ContainerID || r.Epoch != alice.Epoch {
		t.Errorf("alice is at %+v, was at %+v", r, alice)
	}
	m.isItself(t, alice)
	poll.Until(t, "the unclaimed containers are gone", func() bool { return len(m.containers(t)) == 1 })
	m.isItself(t, m.serve(t, "bob"))
	if _, err := m.Stop(t.Context(), "alice"); err != nil {
		t.Fatal(err)
	}
}

// TestWarmContainerWithoutItsWorkspaceServesNoSession: if the mount cannot be attached,
// the container has not received its identity, and is dead before another is created.
func TestWarmContainerWithoutItsWorkspaceServesNoSession(t *testing.T) {
	tmpl := warmTemplate(t, "alice")
	pool := newWarms(t, t.Name(), tmpl, 1)
	n := newNode(t, setup{warm: pool, cfg: Config{Templates: []Template{tmpl}}})
	pool.fill(t)
	pool.busy.Store(true)
	waiting := n.containers(t)[0].ID
	if _, _, err := n.Acquire(t.Context(), "bob", ""); err == nil || !strings.Contains(err.Error(), "bob") {
		t.Errorf("the session boots, %v", err)
	}
	poll.Until(t, "nothing is left", func() bool { return len(n.containers(t)) == 0 && len(n.records(t)) == 0 })
	if c, err := n.engine.Inspect(t.Context(), waiting); err == nil {
		t.Errorf("the warm container is %s", c.State)
	}
	n.isItself(t, n.serve(t, "alice"))
}

// TestMemoryOfAWarmContainer measures the figure of docs/pools.md: the memory that a warm
// container with a small program costs a host.
func TestMemoryOfAWarmContainer(t *testing.T) {
	labtest.NeedLong(t, "a measurement: run it with -long")
	const n = 24
	tmpl := pooled()
	newNode(t, setup{})
	one := newWarms(t, t.Name(), tmpl, 1)
	one.fill(t) // the first container also has the engine's fixed cost
	before := available(t)
	newWarms(t, t.Name(), tmpl, n).fill(t)
	t.Logf("for each of %d warm containers the host has %d KiB less", n, (before-available(t))/n)
}

// available returns the host's MemAvailable in KiB.
func available(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	var kib int64
	_, rest, _ := strings.Cut(string(text), "MemAvailable:")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib
}
