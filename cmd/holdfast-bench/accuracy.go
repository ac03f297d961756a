package main

import (
	"context"
	"io"
	"time"

	"github.com/spf13/pflag"

	"holdfast/bench"
	"holdfast/internal/control/cli"
	"holdfast/internal/hosts/doctor/drill"
)

// accuracyBench is `holdfast bench accuracy`.
func (p *programs) accuracyBench(f *pflag.FlagSet) experiment {
	o := bench.AccuracyOptions{}
	var s bench.AccuracyScaleOptions
	f.IntVar(&o.Runs, "runs", 20, "runs of the doctor for each drill and each healthy host")
	f.DurationVar(&o.For, "for", 30*time.Second, "duration of a run")
	f.StringSliceVar(&o.Only, "only", nil, "only these hosts, a list: a drill's name, idle, busy, booting")
	f.BoolVar(&o.Markdown, "markdown", false, "print the table as Markdown")
	f.StringVar(&o.Page, "write", "", "replace the table in this page")
	scale := f.Bool("scale", false, "instead: time and memory of one run with very many containers and processes")
	f.IntVar(&s.Containers, "containers", 500, "with --scale: how many")
	f.IntVar(&s.Processes, "processes", 20000, "with --scale: processes, in all containers together")
	e := bench.ExamOptions{}
	f.StringVar(&e.Dir, "faults", "", "instead: a blind examination with the faults of this directory (docs/doctor-exam.md)")
	f.Uint64Var(&e.Seed, "seed", 1, "with --faults: of the order and of the distractors")
	f.DurationVar(&e.Within, "within", 30*time.Second, "with --faults: the time in which the doctor has to name a fault")
	f.IntVar(&e.Healthy, "healthy", 0, "with --faults: runs of the doctor on healthy hosts")
	f.BoolVar(&e.HeldOut, "held-out", false, "with --faults: those that are held out, instead of the others")
	f.StringSliceVar(&e.Peers, "peer", nil, "with --faults: NAME=PROGRAM, a list; each runs another tool and prints its alarms")
	check := func() error {
		s.For, e.For, e.Only = o.For, o.For, o.Only
		if !f.Changed("for") {
			e.For = 12 * time.Second
		}
		switch {
		case *scale:
			return s.Check()
		case e.Dir != "":
			return e.Check()
		}
		return o.Check()
	}
	return p.inLab(check, func(ctx context.Context, progress io.Writer) (cli.Result, error) {
		o.Worker = p.product(drill.Role)
		o.Doctor, o.Agent, s.Doctor = p.product("doctor"), p.product("agent"), p.product("doctor")
		e.Doctor, e.Agent = o.Doctor, o.Agent
		o.Progress, s.Progress, e.Progress = progress, progress, progress
		switch {
		case *scale:
			return bench.AccuracyScale(ctx, s)
		case e.Dir != "":
			return bench.Exam(ctx, e)
		}
		return bench.Accuracy(ctx, o)
	})
}
