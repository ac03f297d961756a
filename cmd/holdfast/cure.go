package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"holdfast/internal/agent/cureguard"
	"holdfast/internal/control/config"
	"holdfast/internal/hosts/doctor/cure"
	"holdfast/internal/hosts/doctor/schedule"
	"holdfast/internal/platform/atomicfile"
)

// runCure is `holdfast doctor cure`. It first undoes the cure of an earlier process that
// was killed.
func runCure(ctx context.Context, c cure.Cure, o cure.Options) (cure.Report, error) {
	cfg := hostConfig(ctx)
	host, err := probeHost()
	if err != nil {
		return cure.Report{}, err
	}
	e := cure.Env{Host: host}
	if !o.Apply || c.Name == cure.Self().Name { // Self runs in a container, without an agent's directories
		return c.Run(ctx, e, o)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	guard := cureguard.New(self(roleGuardian), cfg.RunDir, log)
	e.Guard, e.Journal = guard.Cures(), cure.Journal{Path: filepath.Join(cfg.DataDir, cure.FileName)}
	if err := guard.Tidy(); err != nil {
		return cure.Report{}, err
	}
	r, err := c.Run(ctx, e, o)
	return r, errors.Join(err, guard.Close())
}

// kubepods finds the groups for `holdfast doctor cure memcg --kubepods`.
func kubepods(context.Context) ([]string, error) {
	host, err := probeHost()
	if err != nil {
		return nil, err
	}
	return cure.Kubepods(host)
}

// planCure is one cure of `holdfast doctor cure schedule --dry-run`.
func planCure(ctx context.Context, e schedule.Entry) ([]cure.Report, error) {
	host, err := probeHost()
	if err != nil {
		return nil, err
	}
	return e.Plan(ctx, host)
}

// giveSeccomp puts a seccomp profile into a template of the configuration file.
func giveSeccomp(template, file string) (cure.TemplateEdit, error) {
	name := cmp.Or(os.Getenv(configEnv), config.DefaultPath)
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

// replaceFile writes the new text atomically, and keeps the old one in another file.
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
