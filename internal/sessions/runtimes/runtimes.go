// Package runtimes finds out which of the engine's runtimes run containers on this
// host. It tries each runtime that a template names. A template whose runtime is
// missing is then refused with the reason, and other nodes are asked, instead of a
// failure at every boot.
package runtimes

import (
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
)

// Times of Run.
const (
	trialTime = time.Minute // for one trial, without its cleanup
	again     = 30 * time.Second
)

var errEngine = errors.New("this engine supports its default runtime only")

// Checker tries runtimes. Any goroutine may call its methods.
type Checker struct {
	names []string
	try   func(ctx context.Context, runtime string) error
	works *prometheus.GaugeVec // by runtime
	log   *slog.Logger
	pause time.Duration // between two trials of a runtime that does not work

	mu     sync.Mutex
	failed map[string]error // of runtimes that were tried and do not work
}

// New returns a checker of the named runtimes. It ignores "" and duplicates. It
// registers its metrics with reg and starts nothing.
func New(names []string, e engine.Engine, reg prometheus.Registerer, log *slog.Logger) *Checker {
	c := &Checker{
		names: slices.Clone(names), log: log, pause: again, failed: map[string]error{},
		try:   func(context.Context, string) error { return errEngine },
		works: metric.Registry{Registerer: reg}.GaugeVec("holdfast_runtime_works", "Whether a runtime that a template names ran a container when it was last tried, by runtime.", "runtime"),
	}
	slices.Sort(c.names)
	c.names = slices.DeleteFunc(slices.Compact(c.names), func(name string) bool { return name == "" })
	if t, ok := e.(engine.RuntimeTester); ok {
		c.try = t.TestRuntime
	}
	return c
}

// Run tries every runtime, and retries those that do not work, until ctx is done.
func (c *Checker) Run(ctx context.Context) error {
	left := c.names
	for len(left) > 0 {
		var bad []string
		for _, name := range left {
			if !c.once(ctx, name) {
				bad = append(bad, name)
			}
		}
		left = bad
		if tasks.Sleep(ctx, c.pause) != nil {
			return nil
		}
	}
	<-ctx.Done()
	return nil
}

// once reports whether a runtime works.
func (c *Checker) once(ctx context.Context, name string) bool {
	begun := time.Now()
	bound, cancel := context.WithTimeout(ctx, trialTime)
	defer cancel()
	err := c.try(bound, name)
	if ctx.Err() != nil {
		return true // the result is no longer needed
	}
	c.mu.Lock()
	before := c.failed[name]
	delete(c.failed, name)
	if err != nil {
		c.failed[name] = err
	}
	c.mu.Unlock()
	if err == nil {
		c.works.WithLabelValues(name).Set(1)
		c.log.Info("runtime works", "runtime", name, "took", time.Since(begun).Round(time.Millisecond))
		return true
	}
	c.works.WithLabelValues(name).Set(0)
	if before == nil || before.Error() != err.Error() {
		c.log.Warn("a template's runtime does not work: this node refuses its sessions", "runtime", name, "err", err, "hint", holdfast.HintOf(err))
	}
	return false
}

// Check returns why containers of the runtime cannot run here, or nil if nothing is
// known against it: the runtime is "", works, or was not tried yet. The error wraps
// holdfast.ErrNotFound, because to other nodes this node lacks the template.
func (c *Checker) Check(runtime string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.failed[runtime]
	if err == nil {
		return nil
	}
	return holdfast.WithHint(fmt.Errorf("the runtime %s does not work on this node (%v): %w", runtime, err, holdfast.ErrNotFound), holdfast.HintOf(err))
}
