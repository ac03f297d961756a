package main

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/spf13/pflag"

	"holdfast/bench"
	"holdfast/bench/fleet"
	"holdfast/internal/hosts/doctor/drill"
)

// truthBench is `holdfast bench truth`.
func truthBench(f *pflag.FlagSet) experiment {
	o := bench.TruthOptions{Doctor: self("doctor"), Agent: self("agent"), Server: []string{fleet.RoleSession}}
	s := bench.TruthScaleOptions{Doctor: self("doctor")}
	f.IntVar(&o.Runs, "runs", 20, "times that each drill and each healthy host is looked at")
	f.DurationVar(&o.For, "for", 30*time.Second, "how long the doctor looks")
	f.StringSliceVar(&o.Only, "only", nil, "only these hosts, a list: a drill's name, idle, busy, booting")
	f.BoolVar(&o.Markdown, "markdown", false, "print the table as Markdown")
	f.StringVar(&o.Page, "write", "", "write the table into this page, where the old one is")
	scale := f.Bool("scale", false, "instead: one look at very many containers and processes, its time and its memory")
	f.IntVar(&s.Containers, "containers", 500, "with --scale: how many")
	f.IntVar(&s.Processes, "processes", 20000, "with --scale: how many, in all containers together")
	check := func() error {
		s.For = o.For
		if *scale {
			return s.Check()
		}
		return o.Check()
	}
	return inLab(check, func(ctx context.Context, progress io.Writer) (bench.Result, error) {
		program, err := os.Executable() // a container cannot go by /proc/self
		if err != nil {
			return bench.Result{}, err
		}
		o.Worker = []string{program, drill.Role}
		o.Progress, s.Progress = progress, progress
		if *scale {
			return bench.TruthScale(ctx, s)
		}
		return bench.Truth(ctx, o)
	})
}
