package container

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/sessions/kill"
	"holdfast/internal/sessions/kill/killtest"
	"holdfast/internal/sessions/pool"
)

// fake starts a sleeping process in a cgroup with a freezer for every container, and
// can inject faults. Calls that it does not implement panic.
type fake struct {
	Engine
	mu         sync.Mutex
	run        uint64
	next       int
	image      string // id
	containers map[string]*sleeper
	fail       map[string]bool // by call
	known      map[string]bool // calls of the deadman's methods
	wrong      []string        // violations
}

type sleeper struct {
	engine.Container
	cmd *exec.Cmd
}

func newFake() *fake {
	return &fake{run: rand.Uint64(), image: "one", containers: map[string]*sleeper{}, fail: map[string]bool{}, known: map[string]bool{}}
}

var errFault = errors.New("out of order")

// enter locks the fake for a call.
func (f *fake) enter(call string) error {
	f.mu.Lock()
	if f.fail[call] {
		f.mu.Unlock()
		return errFault
	}
	return nil
}

func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fake) ImageID(context.Context, string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.image, nil
}

func (f *fake) Create(_ context.Context, s engine.Spec) (string, error) {
	if err := f.enter("create"); err != nil {
		return "", err
	}
	defer f.mu.Unlock()
	f.next++
	id := fmt.Sprintf("%032x%032d", f.run, f.next)
	f.containers[id] = &sleeper{Container: engine.Container{ID: id, Name: s.Name, Labels: s.Labels, State: "created"}}
	return id, nil
}

func (f *fake) Start(_ context.Context, id string) error {
	if err := f.enter("start"); err != nil {
		return err
	}
	defer f.mu.Unlock()
	if !f.known[id] {
		f.wrong = append(f.wrong, id+" is started and the deadman does not know")
	}
	cmd, err := killtest.Start(id)
	if err != nil {
		return err
	}
	c := f.containers[id]
	c.cmd, c.State, c.Pid = cmd, "running", cmd.Process.Pid
	go func() { _ = cmd.Wait() }() // the test reaps it, as an engine's shim does
	return nil
}

func (f *fake) Inspect(_ context.Context, id string) (engine.Container, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[id]
	if c == nil {
		return engine.Container{}, holdfast.ErrNotFound
	}
	return c.Container, nil
}

func (f *fake) List(context.Context, map[string]string) ([]engine.Container, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []engine.Container
	for _, c := range f.containers {
		out = append(out, c.Container)
	}
	return out, nil
}

func (f *fake) Remove(_ context.Context, id string) error {
	if err := f.enter("remove"); err != nil {
		return err
	}
	defer f.mu.Unlock()
	c := f.containers[id]
	delete(f.containers, id)
	if c == nil || c.cmd == nil {
		return nil
	}
	_ = c.cmd.Process.Kill() // it may be dead
	if err := killtest.Thaw(id); err != nil {
		return err
	}
	return killtest.Remove(id)
}

func (f *fake) ids() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for id := range f.containers {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}

// Expect, Hold and Forget implement the deadman.
func (f *fake) Expect(id string) error {
	if err := f.enter("expect"); err != nil {
		return err
	}
	defer f.mu.Unlock()
	f.known[id] = true
	return nil
}

func (f *fake) Hold(*kill.Target) error { return nil }

func (f *fake) Forget(ids ...string) {
	f.set(func() {
		for _, id := range ids {
			delete(f.known, id)
		}
	})
}

// close kills the processes that a failed test left. A frozen process would not die with
// the test and would prevent its end.
func (f *fake) close(killer *kill.Killer, opener *kill.Opener) {
	for _, id := range f.ids() {
		c, err := f.Inspect(context.Background(), id)
		if err != nil || c.Pid == 0 {
			continue
		}
		if t, err := opener.Open(c.ID, c.Name, c.Pid); err == nil {
			killer.Kill(context.Background(), []*kill.Target{t})
			t.Close()
		}
		_ = killtest.Remove(id) // the test has failed
	}
}

// fakePool is a pool of one template, whose programs connect at once or never.
func fakePool(t testing.TB, f *fake, dir string, most int, d Deps) *Pool {
	t.Helper()
	opener, err := kill.NewOpener()
	if err != nil {
		t.Fatal(err)
	}
	d.Engine, d.Deadman, d.Opener, d.Killer = f, f, opener, &kill.Killer{}
	d.Metrics, d.Log = NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler)
	p := New(Config{Dir: dir, Templates: []Template{{
		Name: "web", Image: "web:1", Most: most,
		Spec: func(name, dir, label string) engine.Spec {
			return engine.Spec{Name: name, Labels: map[string]string{Label: label}, Mounts: []engine.Mount{{Source: dir}}}
		},
		Await: func(_ context.Context, c engine.Container, _ func() bool) (string, error) {
			conn, err := net.Dial("unix", filepath.Join(dir, c.Labels[Label], SocketName))
			if err != nil {
				return "", err
			}
			go program(conn)
			return "192.0.2.1:80", nil
		},
	}}}, d)
	p.idleNode.Least = 1
	p.idleNode.Now()
	return p
}

// program simulates the program in a warm container: it answers when it has received
// its identity.
func program(conn net.Conn) {
	defer conn.Close()
	if _, err := bufio.NewReader(conn).ReadString('\n'); err == nil {
		fmt.Fprintln(conn, "ready")
	}
}

// TestNoContainerIsOfTwoSessions compares a pool with a model of it, with deaths,
// faults, other images, pressure and a node that accepts no sessions.
func TestNoContainerIsOfTwoSessions(t *testing.T) {
	if testing.Short() && os.Geteuid() != 0 {
		t.Skip("-short without root: control groups need root")
	}
	root := t.TempDir()
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		dir := filepath.Join(root, fmt.Sprint(run))
		if err := os.Mkdir(dir, 0o700); err != nil {
			rt.Fatal(err)
		}
		const most = 3
		f, wanted, pressure := newFake(), true, NoPressure
		p := fakePool(t, f, dir, most, Deps{Wanted: func() bool { return wanted }, Pressure: func() Pressure { return pressure }})
		defer f.close(p.deps.Killer, p.deps.Opener)
		p.setOpen(true)
		taken := map[string]bool{}
		var held []*Container
		tend := func() {
			for _, k := range p.kinds {
				k.making = pool.Backoff{}
			}
			p.looked, p.images = time.Time{}, time.Time{}
			for range 50 {
				if !p.tend(t.Context()) {
					return
				}
			}
			rt.Fatal("the pool does not settle")
		}
		remove := func(c *Container) {
			p.deps.Killer.Kill(t.Context(), []*kill.Target{c.target})
			c.target.Close()
			f.Forget(c.id)
			f.set(func() { delete(f.fail, "remove") })
			if err := f.Remove(t.Context(), c.id); err != nil {
				rt.Fatal(err)
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"take": func(rt *rapid.T) {
				ready := p.Counts()[0].Ready
				c := p.Take("web")
				if c == nil {
					return
				}
				if ready == 0 || taken[c.id] || c.target.Init().Exited() {
					rt.Fatalf("%s is dead, or was given before, or %d were ready", c.id, ready)
				}
				taken[c.id] = true
				held = append(held, c)
				told, err := c.Assign(t.Context(), holdfast.Identity{Session: "k", Epoch: 7}, nil)
				if err != nil || !told {
					rt.Fatalf("told %v, %v", told, err)
				}
				g, err := c.target.Freezer()
				if err != nil {
					rt.Fatal(err)
				}
				if frozen, err := g.Frozen(); err != nil || frozen {
					rt.Fatalf("a session's container is frozen: %v, %v", frozen, err)
				}
			},
			"drop": func(rt *rapid.T) {
				if len(held) == 0 {
					rt.Skip()
				}
				i := rapid.IntRange(0, len(held)-1).Draw(rt, "which")
				remove(held[i])
				held = slices.Delete(held, i, i+1)
			},
			"die": func(rt *rapid.T) {
				p.mu.Lock()
				idle := slices.Clone(p.kinds[0].idle)
				p.mu.Unlock()
				if len(idle) == 0 {
					rt.Skip()
				}
				victim := rapid.SampledFrom(idle).Draw(rt, "which").target
				if rapid.Bool().Draw(rt, "killed from outside the pool") { // a frozen process may not have died yet
					_ = victim.Init().Signal(unix.SIGKILL) // it may be dead
					return
				}
				p.deps.Killer.Kill(t.Context(), []*kill.Target{victim})
			},
			"tend":  func(*rapid.T) { tend() },
			"image": func(*rapid.T) { f.set(func() { f.image += "+" }) },
			"close": func(*rapid.T) { wanted = !wanted },
			"pressure": func(rt *rapid.T) {
				pressure = rapid.SampledFrom([]Pressure{NoPressure, Tight, Short}).Draw(rt, "pressure")
			},
			"fault": func(rt *rapid.T) {
				call := rapid.SampledFrom([]string{"create", "start", "expect"}).Draw(rt, "call")
				f.set(func() { f.fail[call] = !f.fail[call] })
			},
			"": func(rt *rapid.T) {
				ids := f.ids()
				for _, c := range held {
					if !slices.Contains(ids, c.id) {
						rt.Fatalf("%s is a session's, and was removed", c.id)
					}
				}
				if n := p.Counts()[0].Ready; n > most || n+len(held) != len(ids) {
					rt.Fatalf("%d are ready, %d held; there are %d", n, len(held), len(ids))
				}
				if len(f.wrong) > 0 {
					rt.Fatal(f.wrong)
				}
			},
		})
		f.set(func() { clear(f.fail) })
		pressure = NoPressure
		tend()
		if n := p.Counts()[0].Ready; wanted && n != most || !wanted && n != 0 {
			rt.Fatalf("%d are ready in the end, wanted is %v", n, wanted)
		}
		p.shut()
		if p.Take("web") != nil {
			rt.Fatal("a stopped pool returned a container")
		}
		for _, c := range held {
			remove(c)
		}
		if err := p.End(t.Context()); err != nil || len(f.ids()) != 0 || len(f.known) != 0 {
			rt.Fatalf("left: %v, known to the deadman %v, %v", f.ids(), f.known, err)
		}
		p.sweep(t.Context())
		if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
			rt.Fatalf("left in the directory: %v, %v", left, err)
		}
	})
}

// TestTell: the identity is in the file, and Assign waits for a program that listens
// on the socket until its context ends.
func TestTell(t *testing.T) {
	dir := t.TempDir()
	f := newFake()
	p := fakePool(t, f, dir, 2, Deps{})
	defer f.close(p.deps.Killer, p.deps.Opener)
	silent := p.kinds[0].Await
	p.kinds[0].Await = func(ctx context.Context, c engine.Container, alive func() bool) (string, error) {
		if p.Counts()[0].Ready == 0 {
			return silent(ctx, c, alive)
		}
		conn, err := net.Dial("unix", filepath.Join(dir, c.Labels[Label], SocketName)) // it never answers
		t.Cleanup(func() { conn.Close() })
		return "192.0.2.1:80", err
	}
	p.setOpen(true)
	for p.tend(t.Context()) {
	}
	want := holdfast.Identity{Session: "alice", Epoch: 7, Env: map[string]string{"A": "b"}}
	good := p.Take("web")
	if told, err := good.Assign(t.Context(), want, nil); err != nil || !told {
		t.Errorf("told %v, %v", told, err)
	}
	text, err := os.ReadFile(filepath.Join(good.dir, FileName))
	var got holdfast.Identity
	if err = errors.Join(err, json.Unmarshal(text, &got)); err != nil || got.Session != "alice" || got.Epoch != 7 || got.Env["A"] != "b" {
		t.Errorf("the file has %s, %v", text, err)
	}
	mute := p.Take("web")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if told, err := mute.Assign(ctx, want, nil); !errors.Is(err, errNoAnswer) || !told {
		t.Errorf("one that does not answer: told %v, %v", told, err)
	}
	if told, err := mute.Assign(t.Context(), want, []engine.Mount{{Type: "volume", Source: "v", Target: "/v"}}); err == nil || told {
		t.Errorf("a volume is attached: told %v, %v", told, err)
	}
	if err := p.endAll(t.Context(), []*Container{good, mute}); err != nil || len(f.ids()) != 0 {
		t.Errorf("left: %v, %v", f.ids(), err)
	}
}
