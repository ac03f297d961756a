package gc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"holdfast/internal/platform/tasks"
)

// Deps are the dependencies of a Collector.
type Deps struct {
	Engine  Engine
	Store   *Store
	Spinups Spinups  // nil: spin-ups are unknown, and deletions do not wait for any
	LockDir string   // for the lock of an engine with a remote data root
	Metrics *Metrics // nil: not registered
	Log     *slog.Logger
	// Keep returns names of images to keep in addition to the policy's. It may be
	// nil. While it returns an error, no plan is made.
	Keep func() ([]string, error)
	Disk func(dir string) (Disk, error) // nil: DiskOf
}

// Collector plans deletions and carries them out. Its methods may be called from
// any goroutine; Run may be called once.
type Collector struct {
	cfg     Config
	d       Deps
	reader  *reader
	tracker *tracker
	gate    *gate
	stats   *stats
	running atomic.Bool          // Run follows events
	caught  atomic.Bool          // Run has read the events from before its start
	last    atomic.Pointer[site] // the last known location of the engine's data

	again int        // used by loop: the next check that may begin a cycle
	cycle sync.Mutex // serializes cycles of this process; the lock on disk excludes other processes
	reads sync.Mutex // guards the reader
}

// New returns a Collector. It starts nothing.
func New(cfg Config, d Deps) *Collector {
	if d.Disk == nil {
		d.Disk = DiskOf
	}
	if d.Spinups == nil {
		d.Spinups = noSpinups{}
	}
	if d.Metrics == nil {
		d.Metrics = NewMetrics(prometheus.NewRegistry())
	}
	c := &Collector{
		cfg: cfg, d: d, reader: newReader(d.Engine), stats: newStats(),
		tracker: &tracker{engine: d.Engine, store: d.Store, policy: cfg, log: d.Log},
	}
	c.gate = &gate{spinups: d.Spinups, stats: c.stats, critical: c.critical}
	return c
}

// Run records image uses until ctx is done and, if collection is enabled, runs
// cycles.
func (c *Collector) Run(ctx context.Context) error {
	if err := c.loadStats(); err != nil {
		return err
	}
	c.running.Store(true)
	defer func() { c.running.Store(false); c.caught.Store(false) }()
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error { return c.tracker.Run(ctx) })
	all.Go(func() error { return c.gate.Run(ctx) })
	all.Go(func() error { return c.saveStats(ctx) })
	if c.cfg.Enabled {
		all.Go(func() error { c.loop(ctx); return nil })
	}
	return all.Wait()
}

// Follow records image uses until ctx is done, without collecting. A caller of a
// single Collect runs Follow beside it, so that a use between the plan and a
// removal is seen. It must not run beside Run.
func (c *Collector) Follow(ctx context.Context) error { return c.tracker.Run(ctx) }

// Answers returns after taking and releasing each lock that deletions and
// spin-ups need. The watchdog calls it. It does not wait for the engine or the
// disk.
func (c *Collector) Answers() {
	c.stats.now()
	c.tracker.mu.Lock()
	defer c.tracker.mu.Unlock()
}

// loadStats loads the statistics from the store.
func (c *Collector) loadStats() error {
	h, err := c.d.Store.Harm()
	if err == nil {
		c.stats.load(h)
	}
	return err
}

// saveStats writes the statistics and the cycles that could not be written before, at
// intervals and once at the end.
func (c *Collector) saveStats(ctx context.Context) error {
	save := func() error { return errors.Join(c.stats.save(c.d.Store.SaveHarm), c.d.Store.WriteLate()) }
	_ = tasks.Every(ctx, flushEvery, func() { _ = save() }) // the store logs the error
	return save()
}

// clockEvery is the number of disk checks per check of the engine for leaks,
// which do not fill the disk.
const clockEvery = 20

// barrenEvery is the number of checks that are skipped after a cycle that found
// nothing to delete.
const barrenEvery = 4

// loop checks the disk every cfg.Every and runs a cycle when there is a reason.
// It logs an error once until a check succeeds again.
func (c *Collector) loop(ctx context.Context) {
	logged := ""
	for n := 0; ; n++ {
		next := c.cfg.Every
		deleted, err := c.turn(ctx, n)
		switch urgent := c.critical(); {
		case urgent && deleted > 0:
			next = 0 // what fills the disk may continue: check again at once
		case urgent || deleted > 0:
			next = min(next, look) // more data may have arrived during the cycle
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && err.Error() != logged && !errors.Is(err, ErrBusy):
			logged = err.Error()
			c.d.Log.Error("garbage collection", "err", err)
		case err == nil:
			logged = ""
		}
		if tasks.Sleep(ctx, next) != nil {
			return
		}
	}
}

// turn makes one check and returns the number of deletions that followed.
func (c *Collector) turn(ctx context.Context, n int) (deleted int, err error) {
	s, disk, err := c.look(ctx)
	if err != nil {
		return 0, err
	}
	trigger := Trigger("")
	if n%clockEvery == 0 && (c.leaks() || n == 0) { // an earlier process may have left trash
		trigger = BySchedule
	}
	for _, r := range c.cfg.rules() {
		if _, wanted := c.cfg.goalOf(r, disk, disk.over(c.cfg.High)); wanted && s.disk != "" {
			trigger = ByThreshold
		}
	}
	if trigger == "" || trigger == ByThreshold && n < c.again {
		return 0, c.mustSee(s)
	}
	cy, err := c.Collect(ctx, trigger, nil)
	if len(cy.Deleted) == 0 {
		c.again = n + barrenEvery
	}
	return len(cy.Deleted), cmp.Or(err, c.mustSee(s))
}

// leaks reports whether a rule applies independently of the disk.
func (c *Collector) leaks() bool {
	for _, r := range c.cfg.rules() {
		if !r.limited() || !r.MaxUsed.IsZero() {
			return true
		}
	}
	return false
}

// look determines where the engine's data is and how full its disk is.
func (c *Collector) look(ctx context.Context) (site, Disk, error) {
	s, err := c.site(ctx)
	if err != nil {
		return s, Disk{}, err
	}
	disk, err := c.disk(s)
	if err != nil {
		return s, disk, err
	}
	c.last.Store(&s)
	c.d.Metrics.disk(disk, c.cfg.LevelOf(disk))
	return s, disk, nil
}

// critical reports whether the disk is now so full that deletions no longer wait
// for spin-ups.
func (c *Collector) critical() bool {
	at := c.last.Load()
	if at == nil {
		return false
	}
	disk, err := c.disk(*at)
	return err == nil && c.cfg.urgent(disk)
}

// Plan returns what a cycle would delete now.
func (c *Collector) Plan(ctx context.Context) (Proposal, error) {
	s, disk, err := c.look(ctx)
	if err != nil {
		return Proposal{}, err
	}
	p, err := c.plan(ctx, s, disk)
	if n := s.unknownDisk(); n != "" {
		p.Notices = append(p.Notices, n)
	}
	return p, err
}

// List returns all objects of the engine, and what keeps each.
func (c *Collector) List(ctx context.Context) (Inventory, error) {
	s, disk, err := c.look(ctx)
	if err != nil {
		return Inventory{}, err
	}
	state, policy, err := c.read(ctx, s, disk, Kinds())
	if err != nil {
		return Inventory{}, err
	}
	out := List(state, policy)
	if n := s.unknownDisk(); n != "" {
		out.Notices = append(out.Notices, n)
	}
	return out, nil
}

func (c *Collector) plan(ctx context.Context, s site, disk Disk) (Proposal, error) {
	state, policy, err := c.read(ctx, s, disk, c.cfg.kinds())
	if err != nil {
		return Proposal{}, err
	}
	c.tracker.settle(state)
	return Plan(state, policy), nil
}

// read returns the objects of the engine, and the policy with what the agent keeps.
func (c *Collector) read(ctx context.Context, s site, disk Disk, kinds []Kind) (State, Config, error) {
	now := time.Now()
	if !c.caught.Load() { // if Run follows events, one successful catch-up is enough
		if err := c.tracker.catchUp(ctx, now); err != nil {
			return State{}, c.cfg, fmt.Errorf("read what was used: %w", err)
		}
		c.caught.Store(c.running.Load())
	}
	uses, err := c.tracker.last()
	if err != nil {
		return State{}, c.cfg, err
	}
	c.reads.Lock()
	defer c.reads.Unlock()
	state, err := c.reader.read(ctx, kinds, uses, s.layers, disk, now)
	if err != nil {
		return State{}, c.cfg, err
	}
	policy := c.cfg
	if c.d.Keep != nil {
		names, err := c.d.Keep()
		if err != nil {
			return State{}, c.cfg, err
		}
		policy.Keep = slices.Concat(policy.Keep, names)
	}
	return state, policy, nil
}

// forgetExit makes the next read ask for the exit of a container again.
func (c *Collector) forgetExit(id string) {
	c.reads.Lock()
	defer c.reads.Unlock()
	delete(c.reader.exits, id)
}

// Observe records a spin-up that has ended and reports whether a deletion ran
// during it.
func (c *Collector) Observe(begun time.Time, took time.Duration, slow bool) bool {
	beside := c.stats.observe(begun, took, slow)
	c.d.Metrics.spinup(beside, slow, took)
	return beside
}

// History returns the last limit cycles, newest first.
func (c *Collector) History(limit int) ([]Cycle, error) { return c.d.Store.Cycles(limit) }
