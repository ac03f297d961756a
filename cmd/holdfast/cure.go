package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"holdfast/internal/agent"
	"holdfast/internal/control/config"
	"holdfast/internal/hosts/doctor/cure"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/platform/atomicfile"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
)

// runCure is `holdfast doctor cure`. What an earlier one that was killed left is
// undone first.
func runCure(ctx context.Context, c cure.Cure, o cure.Options) (cure.Report, error) {
	cfg, err := config.LoadHost(ctx, os.Getenv(configEnv))
	if err != nil {
		slog.Warn("the configuration cannot be used: going on with the defaults", "error", err)
		cfg = config.Default()
	}
	groups, err := cgroup.Find(proc.Host)
	if err != nil {
		return cure.Report{}, err
	}
	e := cure.Env{Host: probe.Host{Proc: proc.Host, Sys: "/sys", Groups: groups}}
	if !o.Apply || c.Name == cure.Self().Name { // which runs in a container: there is nothing of ours
		return c.Run(ctx, e, o)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	guard := agent.NewCureGuard(self(roleGuardian), cfg.RunDir, log)
	e.Guard, e.Journal = guard.Guard(), cure.Journal{Path: filepath.Join(cfg.DataDir, cure.FileName)}
	if err := guard.Tidy(); err != nil {
		return cure.Report{}, err
	}
	r, err := c.Run(ctx, e, o)
	return r, errors.Join(err, guard.Close())
}

// kubepods finds the groups for `holdfast doctor cure memcg --kubepods`.
func kubepods(context.Context) ([]string, error) {
	groups, err := cgroup.Find(proc.Host)
	if err != nil {
		return nil, err
	}
	return cure.Kubepods(probe.Host{Proc: proc.Host, Sys: "/sys", Groups: groups})
}

// giveSeccomp puts a seccomp profile into a template of the configuration file.
func giveSeccomp(template, file string) (cure.TemplateEdit, error) {
	name := os.Getenv(configEnv)
	if name == "" {
		name = config.DefaultPath
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return cure.TemplateEdit{}, err
	}
	changed, differs, err := config.SetSeccomp(context.Background(), text, template, file)
	if err != nil {
		return cure.TemplateEdit{}, fmt.Errorf("%s: %w", name, err)
	}
	return cure.TemplateEdit{File: name, Applied: !differs, Write: func() error { return replaceFile(name, text, changed) }}, nil
}

// replaceFile writes the new text, whole or not at all, and keeps the old one.
func replaceFile(name string, old, text []byte) error {
	fi, err := os.Stat(name)
	if err != nil {
		return err
	}
	if err := os.WriteFile(name+".before-cure", old, fi.Mode().Perm()); err != nil {
		return err
	}
	return atomicfile.Write(name, text, fi.Mode().Perm())
}
