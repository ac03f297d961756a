package main

import (
	"context"
	"io"

	"github.com/spf13/pflag"

	"holdfast/bench/restarts"
	"holdfast/internal/control/cli"
)

// restartsBench is `holdfast bench restarts`.
func (p *programs) restartsBench(f *pflag.FlagSet) experiment {
	var o restarts.Options
	f.IntVar(&o.Rounds, "rounds", 3, "restarts of each kind, with protect and without")
	f.Float64Var(&o.Rate, "rate", 50, "the bench's own clients per second, beside the load tool")
	f.StringSliceVar(&o.Only, "only", nil, "only these servers, a list")
	page := f.String("write", "", "replace the table in this page")
	return p.inLab(func() error { return o.Check() }, func(ctx context.Context, progress io.Writer) (cli.Result, error) {
		o.Protect = p.product("protect")
		o.Progress = progress
		r, err := restarts.Run(ctx, o)
		if err == nil && *page != "" {
			err = restarts.WritePage(*page, r)
		}
		return r, err
	})
}
