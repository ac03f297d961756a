package main

import (
	"context"
	"io"

	"github.com/spf13/pflag"

	"holdfast/bench/fleet"
	"holdfast/bench/sleep"
	"holdfast/internal/control/cli"
)

// sleepBench is `holdfast bench sleep`.
func (p *programs) sleepBench(f *pflag.FlagSet) experiment {
	o := sleep.Options{Server: fleet.RoleSession}
	f.IntVarP(&o.Sleeps, "number", "n", 100, "sleeps")
	f.IntVar(&o.Sockets, "sockets", 1000, "WebSockets that are open while the session sleeps, up to 20000")
	f.BoolVar(&o.Keep, "keep", false, "WebSockets are also kept when the session moves (websocket: keep)")
	f.StringVar(&o.Runsc, "runsc", "", "the session runs under gVisor, with this runsc, and is suspended instead of frozen")
	f.IntVar(&o.Warm, "warm", 0, "sandboxes that wait for the session's memory; needs --runsc")
	f.IntVar(&o.Sessions, "sessions", 0, "instead: memory of a host by this many suspended sessions, which has to be below 50 MB for 1000; needs --runsc")
	return p.inLab(func() error { return o.Check() }, func(ctx context.Context, progress io.Writer) (cli.Result, error) {
		o.Program = p.holdfast
		o.Progress = progress
		return sleep.Run(ctx, o)
	})
}
