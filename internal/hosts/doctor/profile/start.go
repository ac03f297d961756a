package profile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/perf"
)

// Start makes a Recorder wait for containers that do not run yet, and record them from
// their first instruction: it samples before they exist.
type Start struct {
	Within time.Duration // longest wait for the first start, 1 s to MaxWait
	// Command, if it is not nil, is called when the recorder samples, and starts what
	// starts the containers. The channel is closed when the command has ended. Without a
	// container since then, the recording fails with ErrNoStart.
	Command func() (ended <-chan struct{}, err error)
}

// lookEvery is the interval at which the engine is asked for starts.
const lookEvery = 250 * time.Millisecond

// MaxWait is the longest wait for the start of a container.
const MaxWait = time.Hour

// ErrNoStart means that no container has started in time.
var ErrNoStart = errors.New("no container has started")

// starting follows the containers that start during a recording.
type starting struct {
	Recorder
	names *names
	old   map[string]string // the containers that were there when it began, and their state
	began map[string]bool   // containers that started since, and whether each still runs
	first time.Time         // no container had started before
}

// waitFor samples from now on, until the containers that start have been recorded for
// r.For or have ended. It returns when the first one began.
func (r Recorder) waitFor(ctx context.Context, s *perf.Sampler, t *tracker, names *names) (began time.Time, err error) {
	w := &starting{Recorder: r, names: names, began: make(map[string]bool)}
	if err := s.Start(); err != nil {
		return began, err
	}
	if err := w.arm(ctx); err != nil {
		return began, err
	}
	t.wanted = w.wanted
	ended := make(<-chan struct{})
	if r.Start.Command != nil {
		r.step("recording, and starting the command")
		if ended, err = r.Start.Command(); err != nil {
			return began, err
		}
	} else {
		r.step("waiting for the start of " + r.Container)
	}
	began, err = w.follow(ctx, s, t, ended)
	if err == nil && r.Container != "" && len(w.began) > 0 {
		// Containers of other engines have no name, and could have been the one.
		t.wanted = func(group string) bool { _, ok := w.began[fact.ContainerID(group)]; return ok }
		t.forget()
	}
	return began, err
}

// follow samples until the containers that start have been recorded.
func (w *starting) follow(ctx context.Context, s *perf.Sampler, t *tracker, ended <-chan struct{}) (began time.Time, err error) {
	r := w.Recorder
	tick := time.NewTicker(min(s.Interval(), lookEvery))
	defer tick.Stop()
	limit := time.NewTimer(r.Start.Within)
	defer limit.Stop()
	for last := false; ; {
		select {
		case <-ctx.Done():
			return began, ctx.Err()
		case <-ended:
			last, ended = true, nil
		case <-limit.C:
			if began.IsZero() {
				return began, holdfast.WithHint(fmt.Errorf("%w within %v", ErrNoStart, r.Start.Within), "--within sets a longer wait")
			}
			return began, errors.Join(s.Stop(), t.read(s))
		case <-tick.C:
		}
		if err := t.read(s); err != nil {
			return began, err
		}
		at := time.Now()
		runs, err := w.look(ctx)
		if err != nil {
			return began, err
		}
		if len(w.began) > 0 && began.IsZero() {
			began = w.first
			limit.Reset(r.For)
			r.step(fmt.Sprintf("recording for %v", r.For.Round(time.Second)))
		}
		w.first = at
		t.forget()
		switch {
		case !began.IsZero() && !runs && (r.Start.Command == nil || last):
			return began, errors.Join(s.Stop(), t.read(s)) // all of them have ended
		case last && began.IsZero() && len(t.counts) > 0: // a container came and went between two looks
			return w.first, errors.Join(s.Stop(), t.read(s))
		case last && began.IsZero():
			return began, fmt.Errorf("%w before the command ended", ErrNoStart)
		}
	}
}

// arm lists the containers that are no starts. The named one must not run.
func (w *starting) arm(ctx context.Context) error {
	list, err := w.ask(ctx)
	if err != nil {
		return fmt.Errorf("the container engine tells which containers start: %w", err)
	}
	w.old = make(map[string]string)
	for _, c := range list {
		w.old[c.ID] = c.State
		if w.Container != "" && w.named(c) && alive(c) {
			return holdfast.WithHint(fmt.Errorf("container %s already runs", w.Container), "stop it first, or record it without --wait")
		}
	}
	w.first = time.Now()
	return nil
}

func (w *starting) named(c engine.Container) bool {
	return w.Container == "" || c.Name == w.Container || c.ID == w.Container || len(w.Container) >= shortestID && len(c.ID) > len(w.Container) && c.ID[:len(w.Container)] == w.Container
}

func alive(c engine.Container) bool {
	return c.State == "running" || c.State == "paused" || c.State == "restarting"
}

// look asks the engine which containers have started, and reports whether one still runs
// or is about to.
func (w *starting) look(ctx context.Context) (runs bool, err error) {
	list, err := w.ask(ctx)
	if err != nil {
		return false, err
	}
	w.names.add(list, nil)
	for id := range w.began {
		w.began[id] = false // unless it is in the list
	}
	for _, c := range list {
		old, known := w.old[c.ID]
		switch {
		case !w.named(c) || known && aliveState(old):
		case alive(c):
			w.began[c.ID] = true
		case c.State == "created" && !known:
			runs = true
		case !known || old != c.State: // it has ended since
			w.began[c.ID] = false
		}
	}
	for _, on := range w.began {
		runs = runs || on
	}
	return runs, nil
}

func aliveState(state string) bool { return alive(engine.Container{State: state}) }

// wanted reports whether a control group may be that of a container that starts: it is of
// a container, that did not run before and has no other name than the requested one.
func (w *starting) wanted(group string) bool {
	id := fact.ContainerID(group)
	if id == "" || aliveState(w.old[id]) {
		return false
	}
	c, ok := w.names.byID[id]
	return !ok || w.named(c)
}
