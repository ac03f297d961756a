package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"holdfast/bench"
	"holdfast/bench/fleet"
	"holdfast/bench/move"
	"holdfast/bench/rig"
	"holdfast/bench/scale"
	"holdfast/internal/agent"
	"holdfast/internal/control/config"
	"holdfast/internal/hosts/doctor/drill"
	"holdfast/test/lab/echoserver"
)

// Roles of the other processes of this program, beside those that packages name.
const (
	roleGatewayChild = "gateway-child"
	roleDirectory    = "directory"
	roleDoctorLoad   = "doctor-load"
	roleDoctorFold   = "doctor-fold"
	roleCureReader   = "cure-reader"
	roleCureVictim   = "cure-victim"
	roleJoinGroup    = "join-group"
)

func roles() map[string]func(context.Context, []string) error {
	return map[string]func(context.Context, []string) error{
		drill.Role:     drill.Work,
		roleJoinGroup:  func(_ context.Context, args []string) error { return bench.JoinGroup(args) },
		roleCureVictim: func(_ context.Context, args []string) error { return bench.CureVictim(args, os.Stdout) },
		roleCureReader: func(ctx context.Context, args []string) error { return bench.CureReader(ctx, args, os.Stdout) },
		roleGatewayChild: func(ctx context.Context, args []string) error {
			return bench.GatewayChild(ctx, args, os.Stdin, os.Stdout)
		},
		fleet.RoleSession: func(ctx context.Context, _ []string) error { return echoserver.Run(ctx, ":8080") },
		rig.RoleMember: func(ctx context.Context, args []string) error {
			return rig.Member(ctx, args, os.Stdin, os.Stdout)
		},
		fleet.RoleBroken: brokenAgent,
		move.RoleShell:   move.Shell,
		roleDoctorLoad: func(ctx context.Context, args []string) error {
			return bench.DoctorLoad(ctx, args, os.Stdin, os.Stdout)
		},
		roleDoctorFold: func(ctx context.Context, args []string) error {
			return bench.DoctorFold(ctx, args, os.Stdin, os.Stdout)
		},
		roleDirectory: func(ctx context.Context, args []string) error {
			return scale.MeasureDirectory(ctx, args, os.Stdout)
		},
	}
}

// brokenAgent runs an agent with a fence longer than its lease, which every configuration
// file excludes. With it bench fleet shows that its checks detect a session that runs on two
// nodes. Its arguments are the path of holdfast, which runs the agent's other processes, the
// configuration file and the fence.
func brokenAgent(ctx context.Context, args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("broken agent: %d arguments, want three", len(args))
	}
	c, err := config.Load(ctx, args[1], config.Overrides{})
	if err != nil {
		return err
	}
	if c.Store.Fence, err = time.ParseDuration(args[2]); err != nil {
		return err
	}
	role := func(name string) []string { return []string{args[0], name} }
	return agent.Serve(ctx, nil, nil, c, agent.Options{
		Log:      slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Guardian: role("guardian"),
		Deadman:  role("deadman"),
		Hook:     role("hook"),
		Stdout:   os.Stdout,
		Stderr:   os.Stderr,
	})
}
