package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast/internal/hosts/doctor"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/engine/docker"
	"holdfast/test/lab"
)

// AccuracyScaleOptions configures `holdfast bench accuracy --scale`.
type AccuracyScaleOptions struct {
	Containers int           // 0 is 500
	Processes  int           // in all containers together; 0 is 20,000
	For        time.Duration // duration of the doctor run; 0 is 30 s
	Doctor     []string      // the doctor's command line; the bench appends --for and --json
	Progress   io.Writer     // nil discards it
}

// Check reports invalid values.
func (o AccuracyScaleOptions) Check() error {
	switch {
	case o.Containers < 1 || o.Containers > 2000:
		return fmt.Errorf("containers is %d, it must be 1 to 2000", o.Containers)
	case o.Processes < 2*o.Containers || o.Processes > 100_000:
		return fmt.Errorf("processes is %d, it must be at least 2 for each of %d containers, and at most 100000", o.Processes, o.Containers)
	case o.For < doctor.MinFor || o.For > doctor.MaxFor:
		return fmt.Errorf("the duration of the doctor run is %v, it must be from %v to %v", o.For, doctor.MinFor, doctor.MaxFor)
	}
	return nil
}

// Limits of a doctor run (docs/doctor.md).
const (
	scaleMemory = 150 << 20 // bytes
	// scaleLate is the time that the command may take beyond its --for, to start and
	// to end.
	scaleLate = 2 * time.Second
)

// AccuracyScale measures one doctor run on a host with very many idle containers and
// processes. It works only inside a lab (lab.Reenter).
//
// Score is 150 MiB ÷ the peak memory of the doctor. Failed counts each limit that the
// run exceeded: time, memory.
func AccuracyScale(ctx context.Context, o AccuracyScaleOptions) (_ Result, err error) {
	o.Containers, o.Processes, o.For = cmp.Or(o.Containers, 500), cmp.Or(o.Processes, 20_000), cmp.Or(o.For, 30*time.Second)
	if err := o.Check(); err != nil {
		return Result{}, err
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	e, err := lab.StartEngine(ctx, lab.Options{})
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, e.Stop()) }()
	api, err := docker.Open(ctx, docker.Config{Host: e.Host()})
	if err != nil {
		return Result{}, err
	}
	defer api.Close()
	if err := crowd(ctx, e, api, o); err != nil {
		return Result{}, err
	}
	dir, err := os.MkdirTemp("", "holdfast-bench-")
	if err != nil {
		return Result{}, err
	}
	defer os.RemoveAll(dir)
	config, err := writeEngineConfig(dir, e.Host())
	if err != nil {
		return Result{}, err
	}
	pids, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return Result{}, err
	}
	fmt.Fprintf(o.Progress, "looking at %d processes\n", len(pids))
	l, err := runDoctor(ctx, o.Doctor, o.For, config)
	if err != nil {
		return Result{}, err
	}
	return scaleResult(o, l, len(pids)), nil
}

// crowd starts the containers with their idle processes.
func crowd(ctx context.Context, e *lab.Engine, api engine.Engine, o AccuracyScaleOptions) error {
	busybox, err := lab.Busybox()
	if err == nil {
		err = e.Import(ctx, busybox)
	}
	if err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(2 * runtime.NumCPU())
	for i := range o.Containers {
		// The first process of each container is the shell.
		sleepers := o.Processes*(i+1)/o.Containers - o.Processes*i/o.Containers - 1
		if i%50 == 0 {
			fmt.Fprintf(o.Progress, "%d of %d containers\n", i, o.Containers)
		}
		g.Go(func() error {
			command := fmt.Sprintf("i=0; while [ $i -lt %d ]; do sleep 99999 & i=$((i+1)); done; wait", sleepers)
			id, err := api.Create(gctx, engine.Spec{Name: fmt.Sprintf("crowd-%d", i), Image: busyboxImage, Network: "none", Command: []string{"/bin/sh", "-c", command}})
			if err != nil {
				return err
			}
			return api.Start(gctx, id)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	select { // the last shells are still starting their processes
	case <-time.After(settle):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func scaleResult(o AccuracyScaleOptions, l look, pids int) Result {
	seen := 0.0
	for _, f := range l.report.Facts {
		if f.Name == "process.seen" {
			seen = f.Value
		}
	}
	r := Result{
		Name: "accuracy --scale", Machine: ThisMachine(""), Scale: "150 MiB ÷ the doctor's peak memory",
		Rows: []Row{NewRow("the look", "s", []float64{l.took.Seconds()}), NewRow("its memory, at most", "MiB", []float64{float64(l.peak) / (1 << 20)}),
			NewRow("the doctor's CPU time", "s", []float64{l.cpu.Seconds()})},
		Score: scaleMemory / float64(max(1, l.peak)),
		Notes: []string{fmt.Sprintf("%d containers, %d processes; the doctor saw %.0f threads in %v", o.Containers, pids, seen, o.For)},
	}
	if l.took > o.For+scaleLate {
		r.Failed++
		r.Notes = append(r.Notes, "the doctor took longer than --for allows")
	}
	if l.peak > scaleMemory {
		r.Failed++
		r.Notes = append(r.Notes, "the doctor exceeded its memory limit")
	}
	if pids < o.Processes {
		r.Failed++
		r.Notes = append(r.Notes, "fewer processes ran than configured")
	}
	for _, g := range l.report.Gaps {
		r.Notes = append(r.Notes, fmt.Sprintf("the doctor could not observe: %s: %s", g.Sees, g.Why))
	}
	for _, f := range l.report.Findings {
		r.Notes = append(r.Notes, "found: "+tell(f))
	}
	return r
}
