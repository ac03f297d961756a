package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/sessions/kill"
	"holdfast/internal/sessions/kill/killtest"
	"holdfast/internal/sessions/pool"
	"holdfast/test/lab/labtest"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// fake starts a sleeping process for every container, and can inject faults. Calls
// that it does not implement panic.
type fake struct {
	Engine
	mu         sync.Mutex
	run        uint64
	next       int
	image      bool
	containers map[string]*sleeper
	fail       map[string]error // by call
	lose       bool             // the next create succeeds and returns an error
	slow       int              // so many removals fail
	busy       atomic.Bool
	starts     int             // while busy
	known      map[string]bool // calls of the deadman's methods
	wrong      []string        // calls of the deadman's methods in the wrong order
}

type sleeper struct {
	engine.Container
	cmd *exec.Cmd
}

func newFake() *fake {
	return &fake{run: rand.Uint64(), containers: map[string]*sleeper{}, known: map[string]bool{}, fail: map[string]error{}}
}

func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fake) Load(_ context.Context, archive io.Reader) error {
	_, err := io.Copy(io.Discard, archive)
	f.set(func() { f.image = true })
	return err
}

func (f *fake) Create(_ context.Context, s engine.Spec) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fail["create"]; err != nil {
		return "", err
	}
	if !f.image {
		return "", engine.ErrNoImage
	}
	if f.busy.Load() {
		f.starts++
	}
	f.next++
	id := fmt.Sprintf("%032x%032d", f.run, f.next)
	f.containers[id] = &sleeper{Container: engine.Container{ID: id, Name: s.Name, Labels: s.Labels, State: "created"}}
	if f.lose {
		f.lose = false
		return "", errors.New("it succeeded, but the answer is 500")
	}
	return id, nil
}

func (f *fake) Start(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fail["start"]; err != nil {
		return err
	}
	if !f.known[id] {
		f.wrong = append(f.wrong, id+" is started and the deadman does not know")
	}
	c := f.containers[id]
	cmd, err := killtest.Start(id)
	if err != nil {
		return err
	}
	c.cmd, c.State, c.Pid, c.Addresses = cmd, "running", cmd.Process.Pid, []string{"192.0.2.1"}
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
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fail["remove"]; err != nil {
		return err
	}
	if f.slow > 0 {
		f.slow--
		return errors.New("the engine is busy")
	}
	c := f.containers[id]
	delete(f.containers, id)
	if c == nil || c.cmd == nil {
		return nil
	}
	_ = c.cmd.Process.Kill() // it may be dead
	_ = c.cmd.Wait()
	return killtest.Remove(id)
}

// Expect, Hold and Forget implement the deadman.
func (f *fake) Expect(id string) error {
	f.set(func() { f.known[id] = true })
	return nil
}

func (f *fake) Hold(t *kill.Target) error { return f.Expect(t.ID) }

func (f *fake) Forget(ids ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range ids {
		delete(f.known, id)
		if c := f.containers[id]; c != nil && c.cmd != nil && c.cmd.ProcessState == nil && unix.Kill(c.cmd.Process.Pid, 0) == nil && !zombie(c.cmd.Process.Pid) {
			f.wrong = append(f.wrong, id+" is forgotten and runs")
		}
	}
}

// zombie reports whether a process has exited and was not reaped.
func zombie(pid int) bool {
	s, err := proc.Host.Stat(pid)
	return err != nil || s.State == 'Z'
}

// die kills a running holder from outside the pool.
func (f *fake) die(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.containers[id]; c != nil && c.cmd != nil {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	}
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

// fakePool is a pool on a fake. Its networks are given no host name.
func fakePool(t testing.TB, f *fake, size int, wanted func() bool) *Pool {
	if testing.Short() && os.Geteuid() != 0 {
		t.Skip("-short without root: control groups need root")
	}
	opener, err := kill.NewOpener()
	if err != nil {
		t.Fatal(err)
	}
	p := New(Config{Node: "n", Size: size}, Deps{
		Engine: f, Opener: opener, Deadman: f, Wanted: wanted, Busy: f.busy.Load,
		Metrics: NewMetrics(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler),
	})
	p.call = func(*network, string) error { return nil }
	return p
}

// TestNothingIsHandedOutTwice compares a pool with a model of it: what was ever handed
// out, and what the pool must not kill.
func TestNothingIsHandedOutTwice(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := newFake()
		const size = 3
		open := true
		p := fakePool(t, f, size, func() bool { return open })
		p.idleNode.Least = 1
		p.idleNode.Now()
		taken := map[string]bool{} // ever
		held := []string{}         // and not dropped
		ctx := t.Context()
		tend := func() {
			p.making, p.removeAt = pool.Backoff{}, time.Time{}
			for p.tend(ctx) {
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"take": func(rt *rapid.T) {
				ready, _, _ := p.Counts()
				h, ok := p.Take("key")
				if !ok {
					return
				}
				if ready == 0 || taken[h.ID] {
					rt.Fatalf("%s was handed out before, or %d were ready", h.ID, ready)
				}
				if h.Init().Exited() {
					rt.Fatal("a dead one is handed out")
				}
				taken[h.ID] = true
				held = append(held, h.ID)
			},
			"drop": func(rt *rapid.T) {
				if len(held) == 0 {
					rt.Skip()
				}
				i := rapid.IntRange(0, len(held)-1).Draw(rt, "which")
				p.Drop(held[i])
				held = slices.Delete(held, i, i+1)
			},
			"die": func(rt *rapid.T) {
				ids := f.ids()
				if len(ids) == 0 {
					rt.Skip()
				}
				id := rapid.SampledFrom(ids).Draw(rt, "which")
				f.die(id)
			},
			"tend":  func(*rapid.T) { tend() },
			"close": func(*rapid.T) { open = !open },
			"fault": func(rt *rapid.T) {
				call := rapid.SampledFrom([]string{"create", "start", "remove"}).Draw(rt, "call")
				f.set(func() {
					if f.fail[call] == nil {
						f.fail[call] = errors.New("out of order")
					} else {
						delete(f.fail, call)
					}
				})
			},
			"lose":  func(*rapid.T) { f.set(func() { f.lose = true }) },
			"sweep": func(*rapid.T) { p.swept = time.Time{}; tend() },
			"": func(rt *rapid.T) {
				if len(f.wrong) > 0 {
					rt.Fatal(f.wrong)
				}
				for id := range f.containers {
					if f.containers[id].cmd != nil && !f.known[id] {
						rt.Fatalf("%s was started, and the deadman does not know it", id)
					}
				}
				for _, id := range held {
					if !slices.Contains(f.ids(), id) {
						rt.Fatalf("%s is a session's, and was removed", id)
					}
				}
				if ready, used, _ := p.Counts(); ready > size || used != len(held) {
					rt.Fatalf("%d are ready, %d used; %d are held", ready, used, len(held))
				}
			},
		})
		// At the end no container is left, also if answers were lost.
		f.set(func() { clear(f.fail); f.lose = false })
		p.swept = time.Time{}
		tend()
		if ready, _, _ := p.Counts(); open && ready != size || !open && ready != 0 {
			rt.Fatalf("%d are ready in the end, open is %v", ready, open)
		}
		if n, _, _ := p.Counts(); len(f.ids()) != n+len(held) {
			rt.Fatalf("%d containers for %d ready and %d used networks", len(f.ids()), n, len(held))
		}
		if err := p.End(ctx); err != nil || len(f.ids()) != 0 || len(f.known) != 0 || len(f.wrong) != 0 {
			rt.Fatalf("%d are left, %v; known to the deadman %v; %v", len(f.ids()), err, f.known, f.wrong)
		}
	})
}

// TestFailedStartIsRemovedFirst: the deadman waits for a container that may run, and not
// for holders that are dead.
func TestFailedStartIsRemovedFirst(t *testing.T) {
	f := newFake()
	p := fakePool(t, f, 1, nil)
	p.removals = []string{"dead"}
	f.fail["start"] = errors.New("the agent ends")
	if n, err := p.makeOne(t.Context()); err == nil {
		t.Fatalf("a network without a holder: %+v", n)
	}
	if ids := f.ids(); len(ids) != 1 || !f.known[ids[0]] || !slices.Equal(p.removals, []string{ids[0], "dead"}) {
		t.Errorf("the pool removes %q, want %q first", p.removals, ids)
	}
}

// TestEndRepeatsRemovals: an engine that is late with one container does not keep End
// from telling the deadman of the others, nor of that one later.
func TestEndRepeatsRemovals(t *testing.T) {
	f := newFake()
	p := fakePool(t, f, 1, nil)
	p.removals = []string{"late", "other"}
	f.known["late"], f.known["other"] = true, true
	f.slow = 3
	if err := p.End(t.Context()); err != nil {
		t.Error(err)
	}
	if f.known["late"] || f.known["other"] || len(p.removals) > 0 {
		t.Errorf("the deadman has %v, %v are left", f.known, p.removals)
	}
}

func TestNothingIsMadeBesideABoot(t *testing.T) {
	f := newFake()
	f.busy.Store(true)
	p := fakePool(t, f, 2, nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = p.Run(ctx) }()
	time.Sleep(5 * pool.IdlePoll)
	if ready, _, _ := p.Counts(); ready != 0 {
		t.Errorf("%d were made", ready)
	}
	f.busy.Store(false)
	for {
		if ready, _, _ := p.Counts(); ready == 2 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	<-ended
	if f.starts != 0 {
		t.Errorf("%d networks were created during a boot", f.starts)
	}
	if ready, _, _ := p.Counts(); ready != 2 {
		t.Errorf("%d are ready after Run", ready) // the next agent, or End, ends them
	}
	if err := p.End(t.Context()); err != nil || len(f.ids()) != 0 {
		t.Errorf("left after the end: %v, %v", f.ids(), err)
	}
}

// The networks of another store, which is another agent's, are left alone. Those of an
// earlier version, which name no store, are the node's own.
func TestNetworksOfAnotherStoreStay(t *testing.T) {
	f := newFake()
	f.image = true
	p := fakePool(t, f, 0, nil)
	p.cfg.Store = "mine"
	ids := map[string]string{}
	for _, store := range []string{"mine", "theirs", ""} {
		id, err := f.Create(t.Context(), engine.Spec{Name: store, Labels: map[string]string{Label: "n", StoreLabel: store}})
		if err != nil {
			t.Fatal(err)
		}
		ids[store] = id
	}
	p.sweep(t.Context())
	if err := p.End(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := f.ids(); !slices.Equal(left, []string{ids["theirs"]}) {
		t.Errorf("left %v of %v", left, ids)
	}
}
