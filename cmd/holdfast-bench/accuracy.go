package main

import (
	"context"
	"io"
	"time"

	"github.com/spf13/pflag"

	"holdfast/bench"
	"holdfast/bench/fleet"
	"holdfast/internal/control/cli"
	"holdfast/internal/hosts/doctor/drill"
)

// accuracyBench is `holdfast bench accuracy`.
func (p *programs) accuracyBench(f *pflag.FlagSet) experiment {
	o := bench.AccuracyOptions{Server: []string{fleet.RoleSession}}
	var s bench.AccuracyScaleOptions
	f.IntVar(&o.Runs, "runs", 20, "runs of the doctor for each drill and each healthy host")
	f.DurationVar(&o.For, "for", 30*time.Second, "duration of a run")
	f.StringSliceVar(&o.Only, "only", nil, "only these hosts, a list: a drill's name, idle, busy, booting")
	f.BoolVar(&o.Markdown, "markdown", false, "print the table as Markdown")
	f.StringVar(&o.Page, "write", "", "replace the table in this page")
	scale := f.Bool("scale", false, "instead: time and memory of one run with very many containers and processes")
	f.IntVar(&s.Containers, "containers", 500, "with --scale: how many")
	f.IntVar(&s.Processes, "processes", 20000, "with --scale: processes, in all containers together")
	check := func() error {
		s.For = o.For
		if *scale {
			return s.Check()
		}
		return o.Check()
	}
	return p.inLab(check, func(ctx context.Context, progress io.Writer) (cli.Result, error) {
		o.Worker = p.product(drill.Role)
		o.Doctor, o.Agent, s.Doctor = p.product("doctor"), p.product("agent"), p.product("doctor")
		o.Progress, s.Progress = progress, progress
		if *scale {
			return bench.AccuracyScale(ctx, s)
		}
		return bench.Accuracy(ctx, o)
	})
}
