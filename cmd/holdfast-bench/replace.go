package main

import (
	"context"
	"io"
	"time"

	"github.com/spf13/pflag"

	"holdfast/bench/replace"
	"holdfast/internal/control/cli"
)

// replaceBench is `holdfast bench replace`.
func (p *programs) replaceBench(f *pflag.FlagSet) experiment {
	var o replace.Options
	f.IntVarP(&o.N, "number", "n", 20, "replacements with a new replica first")
	f.IntVar(&o.Beside, "beside", 5, "replacements in each of the other ways")
	f.IntVar(&o.Size, "size", 2048, "MiB of data, rounded up to a power of two; the disk needs seven times as much")
	f.IntVar(&o.Readers, "readers", 4, "clients of each kind that read at once")
	f.DurationVar(&o.Rest, "rest", 20*time.Second, "time before and after the replacements of each way")
	f.StringVar(&o.Example, "example", "examples/mariadb", "directory of the example with the image")
	page := f.String("write", "", "replace the table in this page")
	return p.inLab(func() error { return o.Check() }, func(ctx context.Context, progress io.Writer) (cli.Result, error) {
		o.Program, o.Progress = p.holdfast, progress
		r, err := replace.Run(ctx, o)
		if err == nil && *page != "" {
			err = replace.WritePage(*page, r)
		}
		return r, err
	})
}
