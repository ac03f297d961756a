package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/gc"
	"holdfast/test/lab"
)

// Sizes of the disk that spin-ups fill.
const (
	// pressureDisk is so large that 1 % of it holds many images. With the default
	// marks, 1 % lies between the use from which deletions no longer wait for
	// spin-ups and the critical mark.
	pressureDisk = 16 << 30
	pressureBase = 0.939 // share of the disk that other data uses
	pressureLook = 50 * time.Millisecond
	pressureAge  = 5 * time.Second // minimum age before an image may be collected
	pressureMost = 8               // concurrent spin-ups, as on a host with 8 places
	pressureTell = 20 * time.Second
)

// Names of the rows.
const (
	rowDiskUsed = "disk used"
	rowPulled   = "spin-up: new image and container"
	rowForced   = "deletion beside spin-ups: engine locked"
)

// pressure runs spin-ups without a pause, each with a new image, on a small disk of the
// engine's own. Holdfast collects with the default marks and its real waits. Score is
// the critical mark ÷ the highest use. Failed counts the times that the disk reached
// the mark, failed spin-ups, and deletions during spin-ups without a reason or a log
// entry.
func (x *gcBench) pressure(ctx context.Context) (r Result, err error) {
	machine, err := x.machine(ctx)
	if err != nil {
		return Result{}, err
	}
	r = Result{Name: "gc, pressure", Machine: machine}
	if err := x.ballast(); err != nil {
		return r, err
	}
	c := gc.DefaultConfig()
	c.Enabled, c.MinAge = true, pressureAge
	c.Rules = []gc.Rule{{Kinds: []gc.Kind{gc.Images}, Pressure: true}}
	var logged bytes.Buffer
	log := slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelWarn}))
	// The collector's files are elsewhere, so that the disk has only the images.
	col := gc.New(c, gc.Deps{Engine: x.engine, Store: gc.NewStore(filepath.Join(x.dir, "pressure"), log), Spinups: x.list, LockDir: x.dir, Log: log})

	p := &pressed{x: x, critical: c.Critical}
	bounded, cancel := context.WithTimeout(ctx, x.o.Duration)
	defer cancel()
	all, running := errgroup.WithContext(bounded)
	collecting, stop := context.WithCancel(context.WithoutCancel(ctx))
	collected := make(chan error, 1)
	go func() { collected <- col.Run(collecting) }()
	all.Go(func() error { return p.watch(running) })
	all.Go(func() error { return p.arrive(running) })
	err = all.Wait()
	stop()
	if err = errors.Join(err, <-collected, ctx.Err()); err != nil {
		return r, err
	}
	cycles, err := col.History(0)
	if err != nil {
		return r, err
	}
	p.judge(&r, cycles, strings.Count(logged.String(), "deleted during spin-ups"))
	return r, nil
}

// ballast allocates most of the disk without writing to it.
func (x *gcBench) ballast() error {
	d, err := gc.DiskOf(x.disk.Dir)
	if err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(x.disk.Dir, "ballast"))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, int64(float64(d.Total)*pressureBase)-d.Used()); err != nil {
		return fmt.Errorf("allocate most of the disk: %w", err)
	}
	return nil
}

// pressed collects the measurements of pressure.
type pressed struct {
	x        *gcBench
	critical gc.Amount

	used  []float64 // percent
	over  int       // times that the mark was reached
	mu    sync.Mutex
	spans []float64 // durations of the spin-ups in ms
	lost  []error   // errors of failed spin-ups
}

// watch samples the disk's use until ctx is done.
func (p *pressed) watch(ctx context.Context) error {
	tick := time.NewTicker(pressureLook)
	defer tick.Stop()
	was := false
	for told := time.Now(); ; {
		d, err := gc.DiskOf(p.x.disk.Dir)
		if err != nil {
			return err
		}
		is := d.Used() >= p.critical.Of(d.Total)
		if is && !was {
			p.over++
		}
		was = is
		p.used = append(p.used, 100*float64(d.Used())/float64(d.Total))
		if time.Since(told) >= pressureTell {
			told = time.Now()
			fmt.Fprintf(p.x.o.Progress, "%.2f %% of the disk are used\n", p.used[len(p.used)-1])
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// arrive starts spin-ups at the rate while a place is free, and keeps at least one
// running at every moment. It waits for all spin-ups that it started.
func (p *pressed) arrive(ctx context.Context) error {
	always, err := p.x.list.Begin("run", "without-a-pause", createLimit)
	if err != nil {
		return err
	}
	var coming sync.WaitGroup
	places := make(chan struct{}, pressureMost)
	tick := time.NewTicker(time.Duration(float64(time.Second) / p.x.o.Rate))
	defer tick.Stop()
	for n := uint64(1); ; n++ {
		select {
		case places <- struct{}{}:
			coming.Go(func() { p.one(context.WithoutCancel(ctx), n); <-places })
		default:
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			coming.Wait()
			return p.x.list.End(always.ID)
		}
		// The next spin-up begins before this one ends.
		next, err := p.x.list.Begin("run", "without-a-pause", createLimit)
		if err == nil {
			err = p.x.list.End(always.ID)
		}
		if err != nil {
			coming.Wait()
			return err
		}
		always = next
	}
}

// one runs one spin-up.
func (p *pressed) one(ctx context.Context, n uint64) {
	due := time.Now()
	ctx, cancel := context.WithTimeout(ctx, createLimit)
	defer cancel()
	img := lab.ManyFiles(lab.Image{Command: p.x.base.Command}, fmt.Sprintf("job:%d", n), p.x.o.Files, fileSize, n)
	ref, err := p.x.pull(ctx, img)
	if err == nil {
		_, err = p.x.spinUpOf(ctx, ref, fmt.Sprintf("job-%d", n), due)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spans = append(p.spans, millis(time.Since(due)))
	if err != nil {
		p.lost = append(p.lost, err)
	}
}

// judge fills in the result.
func (p *pressed) judge(r *Result, cycles []gc.Cycle, logged int) {
	var locked []float64
	unreasoned := 0
	for _, cy := range cycles {
		for _, o := range cy.Deleted {
			if !o.Forced {
				continue
			}
			locked = append(locked, millis(time.Duration(o.Locked)))
			if o.Reason == "" {
				unreasoned++
			}
		}
	}
	r.Rows = []Row{NewRow(rowDiskUsed, "%", p.used), NewRow(rowPulled, "ms", p.spans), NewRow(rowForced, "ms", locked)}
	unlogged := int(math.Abs(float64(len(locked) - logged)))
	r.Failed = p.over + len(p.lost) + unreasoned + unlogged
	r.Score = p.critical.Percent / max(r.Rows[0].Max, 1)
	r.Notes = append(r.Notes,
		fmt.Sprintf("the highest use of the disk of %.1f GiB was %.2f %%, the critical mark is %v; the disk reached the mark %d times", float64(pressureDisk)/(1<<30), r.Rows[0].Max, p.critical, p.over),
		fmt.Sprintf("%d spin-ups in %v, at every moment at least one; %d failed", len(p.spans), p.x.o.Duration, len(p.lost)),
		fmt.Sprintf("%d deletions beside spin-ups, %d without a reason, %d not logged as a warning", len(locked), unreasoned, unlogged))
	if len(p.lost) > 0 {
		r.Notes = append(r.Notes, "the first failed spin-up: "+p.lost[0].Error())
	}
	if len(locked) == 0 {
		r.Failed++
		r.Notes = append(r.Notes, "nothing was deleted: the disk never reached the high mark")
	}
}

// openDisk returns the engine's options: with a disk of its own if the part needs one.
func (x *gcBench) openDisk() (o lab.Options, err error) {
	if !x.o.Pressure {
		return o, nil
	}
	if x.disk, err = lab.NewDisk(lab.DiskOptions{FS: "ext4", Size: pressureDisk, Make: []string{"-q", "-m", "0"}}); err != nil {
		return o, err
	}
	o.Dir = x.disk.Dir
	return o, nil
}
