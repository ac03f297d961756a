package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/pflag"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/cli"
	"holdfast/test/lab"
)

// programs are the two programs that experiments run: this one, for the roles of
// roles.go, and the measured holdfast.
type programs struct {
	holdfast string // --holdfast; an absolute path once an experiment runs
}

// tool is the command line of holdfast-bench.
func tool(version string) cli.Tool {
	var p programs
	v := api.BuildVersion()
	v.Version = cmp.Or(version, v.Version)
	return cli.Tool{
		Name:    "holdfast-bench",
		Short:   "Measure Holdfast beside its peers on this machine",
		Long:    "Measure Holdfast beside its peers, in one run on this machine. A score over 1 is better than the peer.",
		Example: "  holdfast-bench kill -n 200\n  holdfast-bench boot --holdfast ./bin/holdfast",
		Version: v,
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&p.holdfast, "holdfast", "", "the holdfast to measure (default the one beside this program, then the one in $PATH)")
		},
		Experiments: p.experiments(),
		Hidden:      roles(),
	}
}

// find resolves --holdfast to an absolute path: containers mount it, and processes
// with another working directory run it.
func (p *programs) find() error {
	path := p.holdfast
	if path == "" {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		path = filepath.Join(filepath.Dir(self), "holdfast")
		if _, err := os.Stat(path); err != nil {
			if path, err = exec.LookPath("holdfast"); err != nil {
				return holdfast.WithHint(errors.New("there is no holdfast beside this program, and none in $PATH"), "name one with --holdfast PATH")
			}
		}
	}
	path, err := exec.LookPath(path)
	if err != nil {
		return cli.Usage(fmt.Errorf("--holdfast: %w", err))
	}
	p.holdfast, err = filepath.Abs(path)
	return err
}

// product returns a command of the measured holdfast.
func (p *programs) product(args ...string) []string { return append([]string{p.holdfast}, args...) }

// self returns the command that runs a role of this program.
func self(role ...string) []string { return append([]string{"/proc/self/exe"}, role...) }

// experiment is an experiment with parsed flags.
type experiment = func(context.Context, io.Writer) (cli.Result, error)

// checked refuses invalid flags before anything starts.
func (p *programs) checked(check func() error, run experiment) experiment {
	return func(ctx context.Context, progress io.Writer) (cli.Result, error) {
		if err := check(); err != nil {
			return nil, cli.Usage(err)
		}
		if err := p.find(); err != nil {
			return nil, err
		}
		return run(ctx, progress)
	}
}

// inLab is checked for an experiment on an engine of its own: the process that the
// operator started starts this program once more in the lab, and exits with its code.
func (p *programs) inLab(check func() error, run experiment) experiment {
	return p.checked(check, func(ctx context.Context, progress io.Writer) (cli.Result, error) {
		if lab.Inside() {
			return run(ctx, progress)
		}
		code, err := lab.Reenter()
		if err != nil {
			return nil, err
		}
		return nil, cli.Exit(code)
	})
}
