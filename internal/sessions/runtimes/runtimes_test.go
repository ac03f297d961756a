package runtimes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/sessions/session"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeHost is an engine whose trials and starts end as the test says.
type fakeHost struct {
	engine.Engine
	fails func(runtime string) error
	tried map[string]int
}

func (h *fakeHost) Try(_ context.Context, t engine.Trial) error {
	h.tried[t.Runtime]++
	return h.fails(t.Runtime)
}

func (h *fakeHost) Start(context.Context, string) error { return h.fails("") }

func newHost(fails func(string) error) *fakeHost {
	return &fakeHost{fails: fails, tried: map[string]int{}}
}

// fault is the error of a host. Any goroutine may call its methods.
type fault struct {
	mu  sync.Mutex
	err error
}

func (f *fault) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *fault) get(string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// noStart is the error of a host whose engine starts nothing.
func noStart() error {
	return holdfast.WithHint(fmt.Errorf("no such program: %w", engine.ErrNoStart), "install it")
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// run runs c in a synctest bubble until the end of the returned function.
func run(t *testing.T, c *Checker) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	synctest.Wait()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestTrials(t *testing.T) {
	for _, c := range []struct {
		templates []session.Template
		want      []engine.Trial
	}{
		{nil, []engine.Trial{{Network: "none"}}},
		{[]session.Template{{Network: "none"}, {Runtime: "runsc"}, {Runtime: "kata"}, {Runtime: "runsc"}},
			[]engine.Trial{{Network: "none"}, {Runtime: "kata", Network: "none"}, {Runtime: "runsc", Network: "none"}}},
		{[]session.Template{{Network: "own"}, {}}, []engine.Trial{{}}},
		{[]session.Template{{Network: "bridge"}}, []engine.Trial{{}}},
	} {
		if got := Trials(c.templates); !slices.Equal(got, c.want) {
			t.Errorf("%+v: got %+v, want %+v", c.templates, got, c.want)
		}
	}
}

// A runtime that is installed later is found by the next trial. It is logged once that it
// is missing.
func TestOneThatIsMissingComesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		installed := time.Now().Add(70 * time.Second)
		h := newHost(func(name string) error {
			if name != "runsc" || time.Now().After(installed) {
				return nil
			}
			return holdfast.WithHint(errors.New("no such program"), "install it")
		})
		c := New([]engine.Trial{{}, {Runtime: "kata"}, {Runtime: "runsc"}}, false, h, prometheus.NewRegistry(), slog.New(slog.NewTextHandler(&log, nil)))
		if c.Ready() == nil {
			t.Error("ready before a container has run")
		}
		end := run(t, c)
		for _, name := range []string{"", "kata", "unheard-of"} {
			if err := c.Check(name); err != nil {
				t.Errorf("%q: %v", name, err)
			}
		}
		err := c.Check("runsc")
		if !errors.Is(err, holdfast.ErrNotFound) || holdfast.HintOf(err) != "install it" || !strings.Contains(err.Error(), "no such program") {
			t.Errorf("%v (%s)", err, holdfast.HintOf(err))
		}
		if err := c.Ready(); err != nil {
			t.Errorf("a template's runtime is missing, not the host's: %v", err)
		}
		time.Sleep(5 * time.Minute)
		if err := c.Check("runsc"); err != nil {
			t.Error(err)
		}
		end()
		// At 0, 1, 3, 7, 15, 31, 61 and 91 s.
		if h.tried["kata"] != 1 || h.tried["runsc"] != 8 || h.tried[""] != 1 {
			t.Errorf("tried: %v", h.tried)
		}
		if n := strings.Count(log.String(), "does not work"); n != 1 {
			t.Errorf("%d warnings:\n%s", n, log.String())
		}
	})
}

// A host that starts no container is not ready until it is mended.
func TestHostThatStartsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		err := &fault{err: noStart()}
		h := newHost(err.get)
		c := New([]engine.Trial{{}}, true, h, prometheus.NewRegistry(), quiet())
		if c.Ready() != nil || c.Trouble() != nil {
			t.Error("an agent that takes over waits for a trial")
		}
		defer run(t, c)()
		for what, got := range map[string]error{"ready": c.Ready(), "trouble": c.Trouble(), "a session": c.Check("")} {
			if got == nil || holdfast.HintOf(got) != "install it" {
				t.Errorf("%s: %v", what, got)
			}
		}
		err.set(nil)
		time.Sleep(lastPause)
		if c.Ready() != nil || c.Trouble() != nil || c.Check("") != nil {
			t.Errorf("mended: %v", c.Ready())
		}
	})
}

// An engine that is away or slow, or that refuses a trial's image, says nothing about the
// host's containers.
func TestTrialWithoutAResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		err := &fault{err: fmt.Errorf("load an image: %w", holdfast.ErrEngine)}
		h := newHost(err.get)
		c := New([]engine.Trial{{}}, false, h, prometheus.NewRegistry(), quiet())
		defer run(t, c)()
		if c.Ready() != nil || c.Trouble() != nil || c.Check("") != nil {
			t.Errorf("held against the host: %v", c.Trouble())
		}
		err.set(noStart())
		time.Sleep(lastPause)
		if c.Trouble() == nil {
			t.Error("the result of a later trial is ignored")
		}
		err.set(fmt.Errorf("load an image: %w", holdfast.ErrEngine))
		time.Sleep(2 * lastPause)
		if c.Trouble() == nil {
			t.Error("an engine that is away made the host work")
		}
	})
}

// The first container of a pool makes a trial unnecessary. A later one that does not start
// causes a trial.
func TestStartsOfAPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		err := &fault{}
		h := newHost(err.get)
		c := New([]engine.Trial{{}}, false, h, prometheus.NewRegistry(), quiet())
		pool := c.Observe(h)
		defer run(t, c)()
		if c.Ready() == nil {
			t.Error("ready before a container has run")
		}
		_ = pool.Start(t.Context(), "first")
		time.Sleep(time.Hour)
		if c.Ready() != nil || h.tried[""] != 0 {
			t.Errorf("after a start: %v, %d trials", c.Ready(), h.tried[""])
		}
		err.set(noStart())
		_ = pool.Start(t.Context(), "second")
		synctest.Wait()
		if c.Trouble() == nil || h.tried[""] != 1 {
			t.Errorf("after a start that failed: %v, %d trials", c.Trouble(), h.tried[""])
		}
		err.set(nil)
		_ = pool.Start(t.Context(), "third")
		if c.Ready() != nil {
			t.Errorf("after a start of a mended host: %v", c.Ready())
		}
	})
}

// A pool that starts nothing delays the trial, but does not prevent it.
func TestPoolWithoutStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(func(string) error { return nil })
		c := New([]engine.Trial{{}}, false, h, prometheus.NewRegistry(), quiet())
		c.Observe(h)
		defer run(t, c)()
		time.Sleep(observeTime)
		synctest.Wait()
		if c.Ready() != nil || h.tried[""] != 1 {
			t.Errorf("%v, %d trials", c.Ready(), h.tried[""])
		}
	})
}

// An engine without a test of runtimes supports only its default runtime.
func TestEngineWithoutRuntimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New([]engine.Trial{{}, {Runtime: "runsc"}}, false, nil, prometheus.NewRegistry(), quiet())
		defer run(t, c)()
		if c.Ready() != nil || !errors.Is(c.Check("runsc"), holdfast.ErrNotFound) {
			t.Errorf("%v, %v", c.Ready(), c.Check("runsc"))
		}
	})
}
