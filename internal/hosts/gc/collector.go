package gc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// Deps are what a Collector works with.
type Deps struct {
	Engine  Engine
	Store   *Store
	Spinups Spinups // nil: nobody tells, and nothing is waited for
	LockDir string  // for the lock of an engine whose data root is not here
	Metrics *Metrics
	Log     *slog.Logger
	// Keep are names of images that stay for now, beside those of the
	// policy; may be nil. Nothing is planned while it fails.
	Keep func() ([]string, error)
	Disk func(dir string) (Disk, error) // nil: DiskOf
}

// Collector carries plans out. Its methods may be called from any goroutine, Run
// once.
type Collector struct {
	cfg      Config
	d        Deps
	reader   *reader
	tracker  *tracker
	gate     *gate
	arrivals *arrivals
	watch    *watch
	rates    rates
	running  atomic.Bool // Run follows events
	caught   atomic.Bool // and what was before it is known
	last     atomic.Pointer[seen]

	again int        // loop's: the next look that may begin a cycle
	cycle sync.Mutex // one at a time here; the lock on disk is for others
	reads sync.Mutex // of the reader
}

// seen is what was found out last about the engine's place.
type seen struct {
	site site
	disk Disk
}

// New returns a Collector that has not started anything.
func New(cfg Config, d Deps) *Collector {
	if d.Disk == nil {
		d.Disk = DiskOf
	}
	c := &Collector{
		cfg: cfg, d: d, reader: newReader(d.Engine), arrivals: &arrivals{}, watch: &watch{}, rates: firstRates(),
		tracker: &tracker{engine: d.Engine, store: d.Store, policy: cfg, log: d.Log},
	}
	c.gate = &gate{spinups: d.Spinups, arrivals: c.arrivals, critical: c.critical}
	return c
}

// Run follows what uses images until ctx is done, and collects where that is
// enabled.
func (c *Collector) Run(ctx context.Context) error {
	if err := c.recall(); err != nil {
		return err
	}
	c.running.Store(true)
	defer func() { c.running.Store(false); c.caught.Store(false) }()
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error { return c.tracker.Run(ctx) })
	all.Go(func() error { return c.gate.Run(ctx) })
	all.Go(func() error { return c.keepHarm(ctx) })
	if c.cfg.Enabled {
		all.Go(func() error { c.loop(ctx); return nil })
	}
	return all.Wait()
}

// Follow follows what uses images until ctx is done, and nothing else: beside a
// single Collect, so that a use between its plan and a removal is seen. Not
// beside Run.
func (c *Collector) Follow(ctx context.Context) error { return c.tracker.Run(ctx) }

// Answers returns once each lock was to be had that deletions and spin-ups need: what a
// watchdog asks. It waits for no engine and no disk.
func (c *Collector) Answers() {
	c.watch.now()
	c.arrivals.learnt()
	c.rates.guess(tally{}, 0)
	c.tracker.mu.Lock()
	defer c.tracker.mu.Unlock()
}

// recall reads what was learnt before.
func (c *Collector) recall() error {
	h, err := c.d.Store.Harm()
	if err != nil {
		return err
	}
	c.watch.mu.Lock()
	c.watch.harm = h
	c.watch.mu.Unlock()
	c.arrivals.recall(h.Gaps)
	c.rates.mu.Lock()
	defer c.rates.mu.Unlock()
	if h.Linked > 0 && h.Plain > 0 {
		c.rates.linked, c.rates.plain = h.Linked, h.Plain
	}
	return nil
}

// keepHarm writes what deletions do to spin-ups to disk now and then, and at the
// end.
func (c *Collector) keepHarm(ctx context.Context) error {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			_ = errors.Join(c.saveHarm(), c.d.Store.WriteLate()) // the store says it
		case <-ctx.Done():
			return errors.Join(c.saveHarm(), c.d.Store.WriteLate())
		}
	}
}

func (c *Collector) saveHarm() error {
	c.watch.mu.Lock()
	changed := c.watch.changed
	c.watch.changed = false
	c.watch.mu.Unlock()
	if !changed {
		return nil
	}
	h := c.watch.now()
	h.Gaps = c.arrivals.learnt()
	c.rates.mu.Lock()
	h.Linked, h.Plain = c.rates.linked, c.rates.plain
	c.rates.mu.Unlock()
	err := c.d.Store.SaveHarm(h)
	if err != nil {
		c.watch.mu.Lock()
		c.watch.changed = true
		c.watch.mu.Unlock()
	}
	return err
}

// clockEvery is how many looks at the disk come before one at the engine, for
// what leaks without filling the disk.
const clockEvery = 20

// barrenEvery is how many looks pass after a cycle that found nothing to delete.
const barrenEvery = 4

// loop looks at the disk, and collects when there is a reason. It says once what
// goes wrong, until it goes well again.
func (c *Collector) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	said := ""
	for n := 0; ; n++ {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		next := c.cfg.Every
		deleted, err := c.turn(ctx, n)
		switch urgent := c.critical(); {
		case urgent && deleted > 0:
			next = 0 // who fills the disk does not pause either
		case urgent || deleted > 0:
			next = min(next, look) // more may have come meanwhile
		}
		timer.Reset(next)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && err.Error() != said && !errors.Is(err, ErrBusy):
			said = err.Error()
			c.d.Log.Error("garbage collection", "err", err)
		case err == nil:
			said = ""
		}
	}
}

// turn is one look, and the number of deletions that it led to.
func (c *Collector) turn(ctx context.Context, n int) (deleted int, err error) {
	s, disk, err := c.look(ctx)
	if err != nil {
		return 0, err
	}
	trigger := Trigger("")
	if n%clockEvery == 0 && (c.leaks() || n == 0) { // an earlier process may have left trash
		trigger = ByClock
	}
	for _, r := range c.cfg.rules() {
		if _, wanted := c.cfg.goalOf(r, disk, disk.over(c.cfg.High)); wanted && s.local != "" {
			trigger = ByMark
		}
	}
	if trigger == "" || trigger == ByMark && n < c.again {
		return 0, nil
	}
	cy, err := c.Collect(ctx, trigger, nil)
	if len(cy.Deleted) == 0 {
		c.again = n + barrenEvery
	}
	return len(cy.Deleted), err
}

// leaks reports whether a rule does not depend on the disk.
func (c *Collector) leaks() bool {
	for _, r := range c.cfg.rules() {
		if !r.limited() || !r.MaxUsed.IsZero() {
			return true
		}
	}
	return false
}

// look finds out where the engine's data is, and how full its disk.
func (c *Collector) look(ctx context.Context) (site, Disk, error) {
	s, err := c.site(ctx)
	if err != nil {
		return s, Disk{}, err
	}
	disk, err := c.disk(s)
	if err != nil {
		return s, disk, err
	}
	c.last.Store(&seen{s, disk})
	c.d.Metrics.disk(disk, c.cfg.LevelOf(disk))
	return s, disk, nil
}

// critical reports whether the disk is so full right now that nobody is waited
// for.
func (c *Collector) critical() bool {
	at := c.last.Load()
	if at == nil {
		return false
	}
	disk, err := c.disk(at.site)
	return err == nil && c.cfg.urgent(disk)
}

// Plan says what would go now.
func (c *Collector) Plan(ctx context.Context) (Proposal, error) {
	s, disk, err := c.look(ctx)
	if err != nil {
		return Proposal{}, err
	}
	p, err := c.plan(ctx, s, disk)
	if s.local == "" {
		p.Notices = append(p.Notices, "the engine's data is not on this host: marks and free space are not looked at")
	}
	return p, err
}

func (c *Collector) plan(ctx context.Context, s site, disk Disk) (Proposal, error) {
	now := time.Now()
	if !c.caught.Load() { // while Run follows events once is enough, but that it takes
		if err := c.tracker.catchUp(ctx, now); err != nil {
			return Proposal{}, fmt.Errorf("find out what was used: %w", err)
		}
		c.caught.Store(c.running.Load())
	}
	uses, err := c.tracker.last()
	if err != nil {
		return Proposal{}, err
	}
	c.reads.Lock()
	defer c.reads.Unlock()
	state, err := c.reader.read(ctx, c.cfg, uses, s.layers, disk, now)
	if err != nil {
		return Proposal{}, err
	}
	c.tracker.settle(state)
	policy := c.cfg
	if c.d.Keep != nil {
		names, err := c.d.Keep()
		if err != nil {
			return Proposal{}, err
		}
		policy.Keep = slices.Concat(policy.Keep, names)
	}
	return Plan(state, policy), nil
}

// Observe takes in a spin-up that has ended, and reports whether a deletion ran
// in its window.
func (c *Collector) Observe(begun time.Time, took time.Duration, slow bool) bool {
	beside := c.watch.observe(begun, took, slow)
	c.d.Metrics.spinup(beside, slow, took)
	return beside
}

// History are the last cycles, the newest first.
func (c *Collector) History(limit int) ([]Cycle, error) { return c.d.Store.Cycles(limit) }
