package main

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"time"

	"holdfast/internal/agent"
	"holdfast/internal/agent/execnode"
	"holdfast/internal/agent/filenode"
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
	"holdfast/internal/sessions/files"
	"holdfast/internal/sessions/guardian"
	"holdfast/internal/sessions/hook"
)

// Roles of the other processes of this binary.
const (
	roleGuardian   = "guardian"
	roleDeadman    = "deadman"
	roleHook       = "hook"
	roleJobWatcher = "job-watcher"
	roleKeeper     = "keeper"
	roleCommands   = "command-keeper"
)

// deps returns the functions behind the commands that do not call an agent.
func deps() cli.Deps {
	return cli.Deps{
		Version:      buildVersion(),
		Now:          time.Now,
		AgentFlags:   agentFlags,
		ConfigFlags:  configFlags,
		CheckFiles:   agent.CheckFiles,
		TryEngine:    tryEngine,
		RunAgent:     runAgent,
		AgentSocket:  socketOf,
		HostSocket:   hostSocket,
		NewNodeID:    newNodeID,
		DrainEngine:  drainEngine,
		OpenLocal:    openLocal,
		OpenEngine:   openEngine,
		Host:         thisHost,
		JobWatcher:   self(roleJobWatcher),
		Keeper:       self(roleKeeper),
		GC:           cli.GCDeps{Open: openCollector, Serve: serveCollector},
		Examine:      examine,
		Drill:        makeDrill,
		Cures:        cli.CureDeps{Run: runCure, Kubepods: kubepods, Plan: planCure, Give: giveSeccomp},
		Record:       record,
		StartCommand: startCommand,
		Hidden: map[string]func(context.Context, []string) error{
			roleGuardian:     runGuardian,
			roleDeadman:      runDeadman,
			roleHook:         runHook,
			roleJobWatcher:   runJobWatcher,
			roleKeeper:       runKeeper,
			roleCommands:     runCommands,
			filenode.Role:    func(context.Context, []string) error { return exited(files.Main(os.Stdin, os.Stdout)) },
			probe.RoleAlloc:  func(_ context.Context, args []string) error { return probe.Alloc(args, os.Stdout) },
			drill.Role:       drill.Work,
			plug.RoleWatcher: func(context.Context, []string) error { return exited(plug.Watch()) },
		},
		Bench: becomeBench,
	}
}

// thisHost returns the settings of the host's configuration file for commands that work
// without an agent.
func thisHost(ctx context.Context) (cli.Host, error) {
	c, err := config.LoadHost(ctx, os.Getenv(configEnv))
	if err != nil {
		return cli.Host{}, err
	}
	return cli.Host{DataDir: c.DataDir, RunDir: c.RunDir, Spinup: c.Spinup, Node: c.Node, Role: c.Doctor.Role, Cures: c.Doctor.Cures,
		Tokens: api.TokenFiles{Admin: c.API.TokenFile, Read: c.API.ReadTokenFile}}, nil
}

func buildVersion() api.Version {
	v := api.BuildVersion()
	v.Version = cmp.Or(version, v.Version)
	return v
}

// self returns the command that runs a role of this binary. An upgrade may have replaced
// the file; the kernel's link leads to the running program.
func self(role ...string) []string { return append([]string{"/proc/self/exe"}, role...) }

// exited turns the exit code of a role into the error of its command.
func exited(code int) error {
	if code != 0 {
		return cli.Exit(1)
	}
	return nil
}

// runGuardian runs a guardian until its agent has exited.
func runGuardian(_ context.Context, args []string) error {
	dir := ""
	if len(args) > 0 {
		dir = args[0]
	}
	return exited(guardian.Main(dir, slog.New(slog.NewTextHandler(os.Stderr, nil))))
}

// runDeadman runs a deadman.
func runDeadman(_ context.Context, args []string) error {
	if len(args) != 1 {
		return cli.Exit(2) // only an agent starts it
	}
	return exited(deadman.Main(args[0], os.Stderr))
}

// runHook runs the process that supervises a snapshot command.
func runHook(_ context.Context, args []string) error { return exited(hook.Main(args)) }

// openEngine connects to the engine that the configuration names.
func openEngine(ctx context.Context) (cli.Inspector, error) {
	c, err := config.LoadHost(ctx, os.Getenv(configEnv))
	if err != nil {
		return nil, err
	}
	return process.OpenEngine(ctx, c)
}

// runKeeper runs the process that holds connections for `holdfast protect`.
func runKeeper(_ context.Context, args []string) error {
	return exited(protect.Main(args, builtin.Backends(), slog.New(slog.NewTextHandler(os.Stderr, nil))))
}

// runCommands runs the process that holds the streams of detached commands.
func runCommands(ctx context.Context, args []string) error {
	return exited(execnode.Main(ctx, args, slog.New(slog.NewTextHandler(os.Stderr, nil))))
}

// tryEngine is process.TryEngine in the command line's words.
func tryEngine(ctx context.Context, c config.Config) (cli.TriedEngine, error) {
	tried, err := process.TryEngine(ctx, c)
	out := cli.TriedEngine{Name: tried.Info.Name, Version: tried.Info.Version, Runtimes: tried.Runtimes}
	if tried.Lacking != nil && c.Joins() {
		out.EngineNetworks = tried.Lacking.Error()
	}
	return out, err
}
