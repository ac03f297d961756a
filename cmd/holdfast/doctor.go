package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"time"

	"holdfast/internal/agent/process"
	"holdfast/internal/control/cli"
	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/baseline"
	"holdfast/internal/hosts/doctor/drill"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/hosts/doctor/profile"
	"holdfast/internal/hosts/doctor/watch"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
)

// examine is `holdfast doctor`.
func examine(ctx context.Context, r cli.DoctorRun) (doctor.Report, error) {
	_ = doctor.RaisePriority() // without the right to do so the doctor works at the normal priority
	host, err := probeHost()
	if err != nil {
		return doctor.Report{}, err
	}
	host.Child = self(probe.RoleAlloc)
	e := doctor.Examination{Host: host, For: r.For, Step: r.Step, Known: known(ctx, r.Baselines)}
	if engine, err := hostEngine(ctx); err != nil {
		e.NoEngine = err // the engine only provides names
	} else {
		defer engine.Close()
		e.Engine = engine
	}
	return e.Run(ctx)
}

// recordMemory is the memory limit of a recording, in bytes. Go collects garbage from
// there on.
const recordMemory = 256 << 20

// record is `holdfast doctor record`.
func record(ctx context.Context, r profile.Recorder) (*profile.Profile, error) {
	// This process does nothing else and keeps little: Go's garbage collection would be a
	// fifth of the cost of a recording.
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(recordMemory)
	var err error
	if r.Groups, err = cgroup.Find(proc.Host); err != nil {
		return nil, err
	}
	r.Proc = proc.Host
	if engine, err := hostEngine(ctx); err != nil {
		r.NoEngine = err // the engine only provides names
	} else {
		defer engine.Close()
		r.Engine = engine
	}
	return r.Run(ctx)
}

// commandLimit is how long an interrupted command may take to end.
const commandLimit = 10 * time.Second

// startCommand starts the command of `holdfast doctor record -- COMMAND`.
func startCommand(ctx context.Context, words []string, quiet bool) (cli.Command, error) {
	ctx, stop := context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if quiet {
		cmd.Stdout = os.Stderr
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = commandLimit
	if err := cmd.Start(); err != nil {
		stop()
		return cli.Command{}, err
	}
	ended := make(chan struct{})
	var err error
	go func() {
		defer close(ended)
		err = cmd.Wait()
	}()
	return cli.Command{Ended: ended, Wait: func(now bool) error {
		if now {
			stop()
		}
		<-ended
		stop()
		if err != nil {
			return fmt.Errorf("%s: %w", words[0], err)
		}
		return nil
	}}, nil
}

// known returns the facts of the baseline for this host's kernel and role, and of the machine's
// tests by the agent; none of them if there are none.
func known(ctx context.Context, all []baseline.Baseline) []fact.Fact {
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	host, err2 := thisHost(ctx)
	if err != nil || err2 != nil {
		return nil
	}
	past, _ := watch.NewStore(host.DataDir, 0, slog.New(slog.DiscardHandler)).Past() // with an error the past is unknown
	b, err := baseline.Choose(all, strings.TrimSpace(string(release)), host.Role)
	if err != nil {
		return past
	}
	return append(past, b.Known()...)
}

// makeDrill is `holdfast doctor drill`.
func makeDrill(ctx context.Context, d drill.Drill, o drill.Options) error {
	var err error
	if o.Groups, err = cgroup.Find(proc.Host); err != nil {
		return err
	}
	program, err := os.Executable() // /proc/self is another process in a container
	if err != nil {
		return err
	}
	o.Worker = []string{program, drill.Role}
	engine, err := hostEngine(ctx)
	switch {
	case err == nil:
		defer engine.Close()
		o.Engine = engine // the engine is also needed to remove the leftovers of an earlier drill
	case o.Image != "":
		return err
	}
	return drill.Run(ctx, d, o)
}

// engineLimit is the longest time for the engine's first answer.
const engineLimit = 5 * time.Second

// hostEngine connects to the engine that the configuration names.
func hostEngine(ctx context.Context) (process.Engine, error) {
	ctx, cancel := context.WithTimeout(ctx, engineLimit)
	defer cancel()
	return process.OpenEngine(ctx, hostConfig(ctx))
}

// probeHost returns this host for probes.
func probeHost() (probe.Host, error) {
	groups, err := cgroup.Find(proc.Host)
	return probe.Host{Proc: proc.Host, Sys: "/sys", Kmsg: "/dev/kmsg", Groups: groups}, err
}
