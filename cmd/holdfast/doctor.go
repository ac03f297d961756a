package main

import (
	"context"
	"log/slog"
	"os"
	"runtime/debug"

	"holdfast/internal/cli"
	"holdfast/internal/config"
	"holdfast/internal/doctor"
	"holdfast/internal/doctor/drill"
	"holdfast/internal/doctor/probe"
	"holdfast/internal/doctor/profile"
	"holdfast/internal/engine/docker"
	"holdfast/internal/linux/cgroup"
	"holdfast/internal/linux/proc"
)

// examine is `holdfast doctor`.
func examine(ctx context.Context, r cli.DoctorRun) (doctor.Report, error) {
	groups, err := cgroup.Find(proc.Host)
	if err != nil {
		return doctor.Report{}, err
	}
	e := doctor.Examination{
		Host: probe.Host{Proc: proc.Host, Sys: "/sys", Groups: groups, Child: self(probe.RoleAlloc)},
		For:  r.For, Step: r.Step,
	}
	if engine, err := hostEngine(ctx); err != nil {
		e.NoEngine = err // it only gives names
	} else {
		defer engine.Close()
		e.Engine = engine
	}
	return e.Run(ctx)
}

// record is `holdfast doctor record`.
func record(ctx context.Context, r cli.RecordRun) (*profile.Profile, error) {
	// This process does nothing else and keeps little: collecting that often would
	// be a fifth of what a recording costs.
	debug.SetGCPercent(400)
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

// hostEngine is the engine that the configuration names.
func hostEngine(ctx context.Context) (*docker.Engine, error) {
	c, err := config.LoadHost(ctx, "")
	if err != nil {
		slog.Warn("the configuration cannot be used: going on with the defaults", "error", err)
		c = config.Default()
	}
	return docker.Open(ctx, docker.Config{Host: c.Engine.Host})
}
