package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
	"holdfast/internal/hosts/spinup"
)

// onDisk is the store of an agent that does not run. It implements api.Spinups.
type onDisk struct {
	*spinup.Store
	rules spinup.Rules
}

// List leaves the layers of pulls out, as the agent does.
func (d onDisk) List(f spinup.Filter) ([]spinup.Record, error) {
	records, err := d.Store.List(f)
	for _, r := range records {
		if r.Pull != nil {
			r.Pull.Layers = nil
		}
	}
	return records, err
}

func (d onDisk) Report(q spinup.Question) (spinup.Report, error) { return d.Store.Report(q, d.rules) }
func (d onDisk) Sketch(q spinup.Question) (spinup.Sketch, error) { return d.Store.Sketch(q, d.rules) }
func (d onDisk) Rules() spinup.Rules                             { return d.rules }
func (d onDisk) Add(r spinup.Record) error                       { return d.Append(r) }

// dataDirFlag adds the flag that names a store, to be read without an agent.
func dataDirFlag(cmd *cobra.Command, dir *string) {
	cmd.Flags().StringVar(dir, "data-dir", "", "read the records in this data directory, without an agent")
}

// withSpinups calls do with the agent's records. If no agent answers, or a directory is
// named, it uses the records on disk.
func (a *app) withSpinups(cmd *cobra.Command, limit time.Duration, dir string, do func(context.Context, *client.Client) error) error {
	ctx, cancel := a.limited(cmd, limit)
	defer cancel()
	with := func(c *client.Client) error { return do(ctx, c) }
	if dir != "" {
		p, err := a.recordsIn(ctx, dir)
		if err != nil {
			return err
		}
		return withParts(p, with)
	}
	return a.agentOrHost(ctx, func(h Host, unreachable error) (hostParts, error) {
		if _, err := os.Stat(filepath.Join(h.DataDir, spinup.FileName)); errors.Is(err, fs.ErrNotExist) {
			return hostParts{}, unreachable // there are no records on disk
		}
		a.ui.note("no agent answers: reading the records in %s", clean(h.DataDir))
		return a.recordsIn(ctx, h.DataDir)
	}, with)
}

// recordsIn opens the records in a data directory.
func (a *app) recordsIn(ctx context.Context, dir string) (hostParts, error) {
	path := filepath.Join(dir, spinup.FileName)
	if _, err := os.Stat(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = holdfast.ErrNotFound
		}
		return hostParts{}, holdfast.WithHint(fmt.Errorf("records of spin-ups at %s: %w", path, err), "--data-dir names an agent's data directory")
	}
	h, err := a.deps.Host(ctx)
	if err != nil {
		return hostParts{}, err
	}
	s, err := spinup.ReadStore(path)
	if err != nil {
		return hostParts{}, err
	}
	return hostParts{api.Parts{Spinups: onDisk{s, h.Spinup.Slow}}, s.Close}, nil
}

// parseMoment parses a time ago (24h, 7d), a date or a time. The default zone is the
// local one.
func parseMoment(now time.Time, s string) (time.Time, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			return now.AddDate(0, 0, -int(n)), nil
		}
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, s, time.Local); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is neither a time ago such as 24h or 7d, nor a time such as 2026-11-01 or 2026-11-01T12:00", s)
}
