// Package runtimes finds out whether this host's engine runs containers, with its default
// runtime and with each runtime that a template names. A session whose runtime does not
// work is then refused with the reason, and other nodes are asked, instead of a failure at
// every boot.
package runtimes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/metric"
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/session"
)

// Times of Run.
const (
	trialTime = time.Minute // for one trial, without its cleanup
	// observeTime is how long Run waits for the first container of a pool, which makes a
	// trial of the default runtime unnecessary.
	observeTime = 10 * time.Second
	// The pauses between two trials of what does not work.
	firstPause = time.Second
	lastPause  = 30 * time.Second
)

// DefaultName stands for the engine's default runtime in metrics and texts.
const DefaultName = "default"

var (
	errEngine  = errors.New("this engine supports its default runtime only")
	errPending = holdfast.WithHint(errors.New("no container has run on this node since its agent started"), "the agent runs one within seconds: ask again")
)

// Trials returns the trials for templates: one of the default runtime, the first, and one
// of each runtime that a template names.
func Trials(templates []session.Template) []engine.Trial {
	first := engine.Trial{Network: "none"}
	names := make([]string, 0, len(templates))
	for _, t := range templates {
		if t.Runtime == "" && (t.Network == "" || t.Network == "bridge") {
			first.Network = "" // the default network has to work too
		}
		names = append(names, t.Runtime)
	}
	slices.Sort(names)
	list := []engine.Trial{first}
	for _, name := range slices.Compact(names) {
		if name != "" {
			list = append(list, engine.Trial{Runtime: name, Network: "none"})
		}
	}
	return list
}

// state is what is known about a runtime.
type state struct {
	tried bool // a first trial has ended, with any result
	works bool
	err   error // why it does not work; nil: nothing is known against it
}

// Checker tries runtimes. Any goroutine may call its methods.
type Checker struct {
	trials   []engine.Trial
	try      func(context.Context, engine.Trial) error
	gauge    *prometheus.GaugeVec // by runtime
	log      *slog.Logger
	wake     tasks.Signal // the state of the default runtime may have changed
	observes bool         // Observe was called

	mu     sync.Mutex
	states map[string]state // by runtime
}

// New returns a checker of these trials. trusted means that another agent has run containers
// until now, so that Ready does not wait for a trial. New registers its metrics with reg and
// starts nothing.
func New(trials []engine.Trial, trusted bool, e engine.Engine, reg prometheus.Registerer, log *slog.Logger) *Checker {
	c := &Checker{
		trials: trials, log: log, wake: tasks.NewSignal(), states: map[string]state{"": {tried: trusted}},
		try:   withoutTrials,
		gauge: metric.Registry{Registerer: reg}.GaugeVec("holdfast_runtime_works", "Whether a runtime ran a container when it was last tried, by runtime: default, which is the engine's default, and those that templates name.", "runtime"),
	}
	if t, ok := e.(engine.Tester); ok {
		c.try = t.Try
	}
	return c
}

// withoutTrials is the trial of an engine that cannot be tested.
func withoutTrials(_ context.Context, t engine.Trial) error {
	if t.Runtime == "" {
		return nil
	}
	return errEngine
}

// observed reports the starts of containers of the default runtime to a Checker.
type observed struct {
	engine.Engine
	checker *Checker
}

func (o observed) Start(ctx context.Context, id string) error {
	err := o.Engine.Start(ctx, id)
	if ctx.Err() == nil {
		o.checker.started(err)
	}
	return err
}

// Observe returns e for a pool of containers of the default runtime. Their starts are
// trials, too: the first one that succeeds makes a trial unnecessary, and one that fails
// causes a trial. Observe is called before Run.
func (c *Checker) Observe(e engine.Engine) engine.Engine {
	c.observes = true
	return observed{e, c}
}

// started notes the start of a container of the default runtime.
func (c *Checker) started(err error) {
	c.mu.Lock()
	now := c.states[""]
	c.mu.Unlock()
	switch {
	case err == nil && !now.works:
		c.set("", nil)
	case err != nil && (now.works || !now.tried):
		c.mu.Lock()
		c.states[""] = state{tried: now.tried}
		c.mu.Unlock()
	default:
		return
	}
	c.wake.Set()
}

// Run tries every runtime, and retries those that do not work, until ctx is done.
func (c *Checker) Run(ctx context.Context) error {
	if c.observes {
		c.sleep(ctx, observeTime)
	}
	pause := firstPause
	for ctx.Err() == nil {
		var bad int
		for _, t := range c.trials {
			if !c.works(t.Runtime) && !c.once(ctx, t) {
				bad++
			}
		}
		if bad == 0 {
			pause = firstPause
			c.sleep(ctx, 0)
			continue
		}
		c.sleep(ctx, pause)
		pause = min(2*pause, lastPause)
	}
	return nil
}

// sleep waits for d, or without an end if d is 0, until a start was observed or ctx is done.
func (c *Checker) sleep(ctx context.Context, d time.Duration) {
	var end <-chan time.Time
	if d > 0 {
		end = time.After(d)
	}
	select {
	case <-end:
	case <-c.wake:
	case <-ctx.Done():
	}
}

func (c *Checker) works(runtime string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.states[runtime].works
}

// once tries a runtime and reports whether it works.
func (c *Checker) once(ctx context.Context, t engine.Trial) bool {
	bound, cancel := context.WithTimeout(ctx, trialTime)
	defer cancel()
	err := c.try(bound, t)
	if ctx.Err() != nil {
		return true // the result is no longer needed
	}
	c.set(t.Runtime, err)
	return err == nil
}

// set notes the result of a trial and logs a change. For the default runtime only an error
// of a start is held against the node: an engine that was away, too slow or that refuses the
// trial's image may still run sessions.
func (c *Checker) set(runtime string, err error) {
	unclear := err != nil && runtime == "" && !errors.Is(err, engine.ErrNoStart)
	c.mu.Lock()
	before := c.states[runtime]
	now := state{tried: true, works: err == nil, err: err}
	if unclear {
		now.err = before.err
	}
	c.states[runtime] = now
	c.mu.Unlock()
	name := nameOf(runtime)
	switch {
	case unclear:
		c.log.Info("whether this host runs containers is not known (trying again)", "err", err)
		return
	case err == nil:
		c.gauge.WithLabelValues(name).Set(1)
		if !before.works {
			c.log.Info("runtime works", "runtime", name)
		}
		return
	}
	c.gauge.WithLabelValues(name).Set(0)
	level := slog.LevelWarn
	if before.err != nil {
		level = slog.LevelDebug // logged before
	}
	c.log.Log(context.Background(), level, "a runtime does not work: this node refuses its sessions (trying again)", "runtime", name, "err", err, "hint", holdfast.HintOf(err))
}

func nameOf(runtime string) string { return cmp.Or(runtime, DefaultName) }

// Trouble returns why this node runs no container with the engine's default runtime, or
// nil if nothing is known against it.
func (c *Checker) Trouble() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.states[""].err
}

// Ready is Trouble. Before the first container has run, or failed to, it returns an error.
func (c *Checker) Ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.states[""]; s.err != nil || s.tried {
		return s.err
	}
	return errPending
}

// Check returns why containers of the runtime cannot run here, or nil if nothing is
// known against it: it works, or was not tried yet. The error wraps holdfast.ErrNotFound,
// because to other nodes this node lacks the template.
func (c *Checker) Check(runtime string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.states[runtime].err
	if err == nil {
		return nil
	}
	return holdfast.WithHint(fmt.Errorf("the runtime %s does not work on this node (%v): %w", nameOf(runtime), err, holdfast.ErrNotFound), holdfast.HintOf(err))
}
