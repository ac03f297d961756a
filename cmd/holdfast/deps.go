package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	"holdfast/internal/agent"
	"holdfast/internal/agent/process"
	"holdfast/internal/control/api"
	"holdfast/internal/control/cli"
	"holdfast/internal/control/config"
	"holdfast/internal/hosts/doctor/drill"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/builtin"
	"holdfast/internal/hosts/protect/plug"
	"holdfast/internal/sessions/deadman"
	"holdfast/internal/sessions/guardian"
	"holdfast/internal/sessions/hook"
)

// Roles that other processes of this binary play.
const (
	roleGuardian   = "guardian"
	roleDeadman    = "deadman"
	roleHook       = "hook"
	roleJobWatcher = "job-watcher"
	roleKeeper     = "keeper"
)

// deps joins the command line to the parts that are no calls of an agent.
func deps() cli.Deps {
	return cli.Deps{
		Version:     buildVersion(),
		Now:         time.Now,
		AgentFlags:  agentFlags,
		ConfigFlags: configFlags,
		CheckFiles:  agent.CheckFiles,
		RunAgent:    runAgent,
		AgentSocket: socketOf,
		DrainEngine: drainEngine,
		OpenLocal:   openLocal,
		OpenEngine:  openEngine,
		Host:        thisHost,
		JobWatcher:  self(roleJobWatcher),
		Keeper:      self(roleKeeper),
		GC:          cli.GCDeps{Open: openCollector, Serve: serveCollector},
		Examine:     examine,
		Drill:       makeDrill,
		Cures:       cli.CureDeps{Run: runCure, Kubepods: kubepods, Give: giveSeccomp},
		Record:      record,
		Hidden: map[string]func(context.Context, []string) error{
			roleGuardian:    runGuardian,
			roleDeadman:     runDeadman,
			roleHook:        runHook,
			roleJobWatcher:  runJobWatcher,
			roleKeeper:      runKeeper,
			probe.RoleAlloc: func(_ context.Context, args []string) error { return probe.Alloc(args, os.Stdout) },
			drill.Role:      drill.Work,
			plug.RoleWatcher: func(context.Context, []string) error {
				if plug.Watch() != 0 {
					return cli.Exit(1)
				}
				return nil
			},
		},
		Bench: becomeBench,
	}
}

// thisHost is what the host's configuration file says to commands that do without
// an agent.
func thisHost(ctx context.Context) (cli.Host, error) {
	c, err := config.LoadHost(ctx, os.Getenv(configEnv))
	if err != nil {
		return cli.Host{}, err
	}
	return cli.Host{DataDir: c.DataDir, RunDir: c.RunDir, Spinup: c.Spinup, Node: c.Node, Role: c.Doctor.Role}, nil
}

func buildVersion() api.Version {
	v := api.BuildVersion()
	if version != "" {
		v.Version = version
	}
	return v
}

// self is the command that plays a role of this binary. The file may have been
// replaced by an upgrade; the kernel's link leads to what runs.
func self(role ...string) []string { return append([]string{"/proc/self/exe"}, role...) }

// runGuardian is a guardian's whole life.
func runGuardian(_ context.Context, args []string) error {
	dir := ""
	if len(args) > 0 {
		dir = args[0]
	}
	if guardian.Main(dir, slog.New(slog.NewTextHandler(os.Stderr, nil))) != 0 {
		return cli.Exit(1)
	}
	return nil
}

// runDeadman is a deadman's whole life.
func runDeadman(_ context.Context, args []string) error {
	if len(args) != 1 {
		return cli.Exit(2) // only an agent starts it
	}
	if deadman.Main(args[0], os.Stderr) != 0 {
		return cli.Exit(1)
	}
	return nil
}

// runHook is the whole life of a snapshot command's keeper.
func runHook(_ context.Context, args []string) error {
	if hook.Main(args) != 0 {
		return cli.Exit(1)
	}
	return nil
}

// openEngine connects to the engine that the configuration names.
func openEngine(ctx context.Context) (cli.Inspector, error) {
	c, err := config.LoadHost(ctx, os.Getenv(configEnv))
	if err != nil {
		return nil, err
	}
	return process.OpenEngine(ctx, c)
}

// runKeeper is a keeper's whole life.
func runKeeper(_ context.Context, args []string) error {
	if protect.Main(args, builtin.Backends(), slog.New(slog.NewTextHandler(os.Stderr, nil))) != 0 {
		return cli.Exit(1)
	}
	return nil
}
