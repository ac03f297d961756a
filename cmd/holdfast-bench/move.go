package main

import (
	"context"
	"io"
	"time"

	"github.com/spf13/pflag"

	"holdfast/bench/move"
	"holdfast/bench/rig"
	"holdfast/internal/control/cli"
)

// moveBench is `holdfast bench move`.
func (p *programs) moveBench(f *pflag.FlagSet) experiment {
	o := move.Options{Member: self(rig.RoleMember)}
	f.IntVarP(&o.N, "number", "n", 20, "moves of a small session, and cold boots beside them")
	f.IntVar(&o.Large, "large", 5, "moves and resumes of a session with 256 MiB in memory")
	f.IntVar(&o.Forks, "forks", 3, "forks of a session of 64 MiB")
	f.IntVar(&o.Children, "children", 20, "sessions that each fork starts")
	f.IntVar(&o.Warm, "warm", 0, "sandboxes that wait on each node for the memory of a fork's children, and at most 2 of them for that of another session")
	f.IntVar(&o.Many, "many", 30, "sessions of 30 MiB that are drained at once")
	f.DurationVar(&o.Notice, "notice", 30*time.Second, "notice of the drains")
	f.StringVar(&o.Network, "network", "bridge", "network of the sessions: bridge, the engine's own, or pooled, Holdfast's")
	f.StringVar(&o.Runsc, "runsc", "", "path of gVisor's runsc (default what packaging/dev/runsc.sh built, else /usr/local/bin/runsc)")
	dockerd(f, &o.Dockerd)
	page := f.String("write", "", "replace the table in this page")
	return p.inLab(func() error { return o.Check() }, func(ctx context.Context, progress io.Writer) (cli.Result, error) {
		o.Program = p.holdfast
		o.Progress = progress
		r, err := move.Run(ctx, o)
		if err == nil && *page != "" {
			err = move.WritePage(*page, r)
		}
		return r, err
	})
}
