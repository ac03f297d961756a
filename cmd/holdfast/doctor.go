package main

import (
	"context"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"holdfast/internal/agent/process"
	"holdfast/internal/control/cli"
	"holdfast/internal/control/config"
	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/baseline"
	"holdfast/internal/hosts/doctor/drill"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/hosts/doctor/profile"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
)

// examine is `holdfast doctor`.
func examine(ctx context.Context, r cli.DoctorRun) (doctor.Report, error) {
	_ = doctor.RaisePriority() // without the right to it the look is made all the same
	groups, err := cgroup.Find(proc.Host)
	if err != nil {
		return doctor.Report{}, err
	}
	e := doctor.Examination{
		Host: probe.Host{Proc: proc.Host, Sys: "/sys", Groups: groups, Child: self(probe.RoleAlloc)},
		For:  r.For, Step: r.Step,
	}
	e.Known = known(ctx, r.Baselines)
	if engine, err := hostEngine(ctx); err != nil {
		e.NoEngine = err // it only gives names
	} else {
		defer engine.Close()
		e.Engine = engine
	}
	return e.Run(ctx)
}

// recordMemory is where a recording begins to collect garbage, in bytes.
const recordMemory = 256 << 20

// record is `holdfast doctor record`.
func record(ctx context.Context, r cli.RecordRun) (*profile.Profile, error) {
	// This process does nothing else and keeps little: collecting would be a fifth of
	// what a recording costs.
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(recordMemory)
	groups, err := cgroup.Find(proc.Host)
	if err != nil {
		return nil, err
	}
	x := profile.Recorder{Proc: proc.Host, Groups: groups, For: r.For, Hz: r.Hz, Container: r.Container, Step: r.Step}
	if engine, err := hostEngine(ctx); err != nil {
		x.NoEngine = err // it only gives names
	} else {
		defer engine.Close()
		x.Engine = engine
	}
	return x.Run(ctx)
}

// known is what the baseline says that goes for this host, nothing where there is
// none.
func known(ctx context.Context, all []baseline.Baseline) []fact.Fact {
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	host, err2 := thisHost(ctx)
	if err != nil || err2 != nil {
		return nil
	}
	b, err := baseline.Choose(all, strings.TrimSpace(string(release)), host.Role)
	if err != nil {
		return nil
	}
	return b.Known()
}

// makeDrill is `holdfast doctor drill`.
func makeDrill(ctx context.Context, r cli.DrillRun) error {
	groups, err := cgroup.Find(proc.Host)
	if err != nil {
		return err
	}
	program, err := os.Executable() // a container cannot go by /proc/self
	if err != nil {
		return err
	}
	o := drill.Options{
		For: r.For, Size: r.Size, Dir: r.Dir, Image: r.Image, Groups: groups,
		Worker: []string{program, drill.Role}, Ready: r.Ready, Progress: r.Progress,
	}
	engine, err := hostEngine(ctx)
	switch {
	case err == nil:
		defer engine.Close()
		o.Engine = engine // it also removes what an earlier drill left
	case r.Image != "":
		return err
	}
	return drill.Run(ctx, r.Drill, o)
}

// engineLimit is what the engine gets to answer at all.
const engineLimit = 5 * time.Second

// hostEngine is the engine that the configuration names.
func hostEngine(ctx context.Context) (process.Engine, error) {
	ctx, cancel := context.WithTimeout(ctx, engineLimit)
	defer cancel()
	c, err := config.LoadHost(ctx, os.Getenv(configEnv))
	if err != nil {
		slog.Warn("the configuration cannot be used: going on with the defaults", "error", err)
		c = config.Default()
	}
	return process.OpenEngine(ctx, c)
}
