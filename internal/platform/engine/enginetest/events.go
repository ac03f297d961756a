package enginetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// watcher reads events in the background.
type watcher struct {
	events chan engine.Event
	stop   func() // ends the sequence and returns when it has ended
}

// watch starts to read the events of this suite's containers, and returns after the
// first Gap.
func (s *suite) watch(t *testing.T) *watcher {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &watcher{events: make(chan engine.Event, 10_000)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ev := range s.Engine.Watch(ctx, engine.WatchOptions{}) {
			if ev.Gap || ev.Type == engine.OfContainer && ev.Labels[label] == "yes" {
				w.events <- ev
			}
		}
	}()
	w.stop = func() {
		t.Helper()
		cancel()
		within(t, "an event after the end of the sequence", func() { <-done })
	}
	t.Cleanup(w.stop)
	if ev := w.next(t); !ev.Gap {
		t.Fatalf("events begin with %+v, not with a gap", ev)
	}
	return w
}

func (w *watcher) next(t *testing.T) engine.Event {
	t.Helper()
	select {
	case ev := <-w.events:
		return ev
	case <-time.After(patience):
		t.Fatal("no event arrives")
		return engine.Event{}
	}
}

// until returns the events up to one that is good.
func (w *watcher) until(t *testing.T, good func(engine.Event) bool) []engine.Event {
	t.Helper()
	var seen []engine.Event
	for {
		ev := w.next(t)
		seen = append(seen, ev)
		if good(ev) {
			return seen
		}
	}
}

func (s *suite) events(t *testing.T) {
	w := s.watch(t)
	spec := s.spec("sh", "-c", "exit 5")
	spec.Labels["holdfast.session"] = "alice"
	id := s.start(t, spec)
	s.waitExit(t, id)
	if err := s.Engine.Remove(s.context(t), id); err != nil {
		t.Fatal(err)
	}
	seen := w.until(t, func(ev engine.Event) bool { return ev.Action == "destroy" })
	order := []string{"create", "start", "die", "destroy"}
	for _, ev := range seen {
		if ev.ID != id || ev.Gap {
			t.Errorf("an event of another: %+v", ev)
		}
		if len(order) == 0 || ev.Action != order[0] {
			continue
		}
		order = order[1:]
		if ev.Labels["holdfast.session"] != "alice" || len(ev.Labels) != 2 || time.Since(ev.Time).Abs() > time.Hour {
			t.Errorf("event without its labels or time: %+v", ev)
		}
		if ev.Action == "die" && ev.ExitCode != 5 {
			t.Errorf("exit code %d in %+v", ev.ExitCode, ev)
		}
	}
	if len(order) > 0 {
		t.Errorf("no %v in %+v", order, seen)
	}
	w.stop()
}

// eventsBreak breaks off the iteration after the first event.
func (s *suite) eventsBreak(t *testing.T) {
	within(t, "breaking off the iteration", func() {
		for ev := range s.Engine.Watch(t.Context(), engine.WatchOptions{}) {
			if !ev.Gap {
				t.Errorf("the first event is %+v", ev)
			}
			break
		}
	})
}

// eventsMissNothing subscribes many times while containers are made. A container that
// is not in the list at the gap has to appear in an event.
func (s *suite) eventsMissNothing(t *testing.T) {
	const rounds = 20
	for range rounds {
		spec := s.spec()
		type made struct {
			id  string
			err error
		}
		created := make(chan made, 1)
		go func() {
			id, err := s.Engine.Create(s.context(t), spec)
			created <- made{id, err}
		}()
		w := s.watch(t)
		list, err := s.Engine.List(s.context(t), map[string]string{label: "yes"})
		if err != nil {
			t.Fatal(err)
		}
		c := <-created
		if c.err != nil {
			t.Fatal(c.err)
		}
		listed := false
		for _, item := range list {
			listed = listed || item.ID == c.id
		}
		if !listed {
			w.until(t, func(ev engine.Event) bool { return ev.ID == c.id && ev.Action == "create" })
		}
		w.stop()
		if err := s.Engine.Remove(s.context(t), c.id); err != nil {
			t.Fatal(err)
		}
	}
}

// eventsOverRestart ends the daemon, lets a container die, and starts the daemon
// again. The reader gets a gap, and the list at the gap has the dead container.
func (s *suite) eventsOverRestart(t *testing.T) {
	for name, stop := range map[string]func() error{"stop": s.Stop, "crash": s.Crash} {
		t.Run(name, func(t *testing.T) {
			dies := s.start(t, s.spec("sh", "-c", "while [ ! -e /stop/now ]; do sleep 0.01; done; exit 6"))
			lives := s.start(t, s.spec())
			pid := s.inspect(t, lives).Pid
			doomed := s.inspect(t, dies).Pid
			w := s.watch(t)
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Engine.Info(s.context(t)); !errors.Is(err, holdfast.ErrEngine) {
				t.Errorf("an engine that is down: %v", err)
			}
			killAndSee(t, doomed)
			time.Sleep(200 * time.Millisecond) // for failing attempts of the reader
			for len(w.events) > 0 {
				if ev := <-w.events; ev.Gap {
					t.Error("a gap was yielded before the engine was back")
				}
			}
			if err := s.Start(s.context(t)); err != nil {
				t.Fatal(err)
			}
			w.until(t, func(ev engine.Event) bool { return ev.Gap })
			list, err := s.Engine.List(s.context(t), map[string]string{label: "yes"})
			if err != nil {
				t.Fatal(err)
			}
			states := map[string]string{}
			for _, c := range list {
				states[c.ID] = c.State
			}
			if states[dies] != "exited" || states[lives] != "running" {
				t.Errorf("at the gap the dead container is %q, the other %q", states[dies], states[lives])
			}
			if now := s.inspect(t, lives).Pid; now != pid {
				t.Errorf("init of the container that lived on was %d and is %d", pid, now)
			}
			after := s.create(t, s.spec())
			w.until(t, func(ev engine.Event) bool { return ev.ID == after && ev.Action == "create" })
		})
	}
}

// watches reads the present and past events of the whole engine.
func (s *suite) watches(t *testing.T) {
	begun := time.Now()
	id := s.create(t, s.spec())
	if err := s.Engine.Start(s.context(t), id); err != nil {
		t.Fatal(err)
	}
	c := s.inspect(t, id)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// Both events are past now: the engine has to remember them.
	within(t, "the engine's memory", func() {
		var first, created, connected bool
		for ev := range s.Engine.Watch(ctx, engine.WatchOptions{Since: begun, Actions: []string{"create", "connect", "start"}}) {
			switch {
			case !first:
				first = true
				if !ev.Gap {
					t.Errorf("events begin with %+v", ev)
				}
			case ev.Type == engine.OfNetwork && ev.Container == id:
				connected = ev.Action == "connect"
			case ev.ID == id && ev.Action == "create":
				created = ev.Type == engine.OfContainer && ev.Name == c.Name && ev.Image == c.Image && ev.Labels[label] == "yes" && !ev.Time.Before(c.Created)
			case ev.ID == id:
				if ev.Action != "start" || !created || !connected {
					t.Errorf("created %v, connected %v, and then %+v", created, connected, ev)
				}
				return
			}
		}
	})
}

// watchOverRestart gets a gap, and then new events.
func (s *suite) watchOverRestart(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	events, done := make(chan engine.Event, 10_000), make(chan struct{})
	go func() {
		defer close(done)
		for ev := range s.Engine.Watch(ctx, engine.WatchOptions{Actions: []string{"create"}}) {
			events <- ev
		}
	}()
	w := &watcher{events: events, stop: func() { cancel(); within(t, "an event after the end of the sequence", func() { <-done }) }}
	defer w.stop()
	if ev := w.next(t); !ev.Gap {
		t.Errorf("events begin with %+v", ev)
	}
	before := s.create(t, s.spec())
	w.until(t, func(ev engine.Event) bool { return ev.ID == before })
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(s.context(t)); err != nil {
		t.Fatal(err)
	}
	if ev := w.next(t); !ev.Gap {
		t.Errorf("after a restart comes %+v", ev)
	}
	after := s.create(t, s.spec())
	for _, ev := range w.until(t, func(ev engine.Event) bool { return ev.ID == after }) {
		if ev.ID == before {
			t.Errorf("told twice: %+v", ev)
		}
	}
}
