package cli

import (
	"cmp"
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

// spinupSource has the records of spin-ups.
type spinupSource interface {
	Spinups(ctx context.Context, f spinup.Filter) ([]api.JudgedSpinup, error)
	Spinup(ctx context.Context, id string) (api.JudgedSpinup, error)
	SpinupReport(ctx context.Context, q spinup.Question) (spinup.Report, error)
}

var (
	_ spinupSource = (*client.Client)(nil)
	_ spinupSource = onDisk{}
)

// onDisk is the store of an agent that does not run.
type onDisk struct {
	store *spinup.Store
	rules spinup.Rules
}

func (d onDisk) Spinups(_ context.Context, f spinup.Filter) ([]api.JudgedSpinup, error) {
	if f.Slow != nil {
		f.Slow = &d.rules
	}
	f.Limit = cmp.Or(f.Limit, api.DefaultSpinups)
	records, err := d.store.List(f)
	if err != nil {
		return nil, err
	}
	out := []api.JudgedSpinup{}
	for _, r := range records {
		if r.Pull != nil {
			r.Pull.Layers = nil // as the agent does
		}
		out = append(out, api.Judge(r, d.rules))
	}
	return out, nil
}

func (d onDisk) Spinup(_ context.Context, id string) (api.JudgedSpinup, error) {
	r, err := d.store.Get(id)
	if err != nil {
		return api.JudgedSpinup{}, err
	}
	return api.Judge(r, d.rules), nil
}

func (d onDisk) SpinupReport(_ context.Context, q spinup.Question) (spinup.Report, error) {
	if q.Filter.Slow != nil {
		q.Filter.Slow = &d.rules
	}
	return d.store.Report(q, d.rules)
}

// dataDirFlag adds the flag that names a store, to be read without an agent.
func dataDirFlag(cmd *cobra.Command, dir *string) {
	cmd.Flags().StringVar(dir, "data-dir", "", "read the records in this data directory, without an agent")
}

// withSpinups calls do with the agent's records. If no agent answers, or a directory is
// named, it uses the records on disk.
func (a *app) withSpinups(cmd *cobra.Command, limit time.Duration, dir string, do func(context.Context, spinupSource) error) error {
	ctx, cancel := a.limited(cmd, limit)
	defer cancel()
	if dir != "" {
		return a.withStore(ctx, dir, do)
	}
	return a.agentOrHost(ctx, func(c *client.Client) error { return do(ctx, c) }, func(h Host, unreachable error) error {
		if _, err := os.Stat(filepath.Join(h.DataDir, spinup.FileName)); errors.Is(err, fs.ErrNotExist) {
			return unreachable // there are no records on disk
		}
		a.ui.note("no agent answers: reading the records in %s", clean(h.DataDir))
		return a.withStore(ctx, h.DataDir, do)
	})
}

// agentOrHost calls ask with the agent. If no agent answers it calls without, with the
// error of the agent's client.
func (a *app) agentOrHost(ctx context.Context, ask func(*client.Client) error, without func(h Host, unreachable error) error) error {
	c, err := a.agent()
	if err != nil {
		return err
	}
	defer c.Close()
	err = ask(c)
	if !a.hostMayAnswer(ctx, err) {
		return err
	}
	h, hostErr := a.thisHost(ctx)
	if hostErr != nil {
		return errors.Join(err, hostErr)
	}
	return without(h, err)
}

// hostMayAnswer reports whether, after an error of the agent's client, a command may
// use this host without an agent: no agent answers, and the user has not named one by
// its socket or address.
func (a *app) hostMayAnswer(ctx context.Context, err error) bool {
	return errors.Is(err, client.ErrUnreachable) && ctx.Err() == nil && a.remoteURL() == "" && a.socket == ""
}

// withStore calls do with the records in a data directory.
func (a *app) withStore(ctx context.Context, dir string, do func(context.Context, spinupSource) error) error {
	path := filepath.Join(dir, spinup.FileName)
	if _, err := os.Stat(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = holdfast.ErrNotFound
		}
		return holdfast.WithHint(fmt.Errorf("records of spin-ups at %s: %w", path, err), "--data-dir names an agent's data directory")
	}
	h, err := a.thisHost(ctx)
	if err != nil {
		return err
	}
	s, err := spinup.ReadStore(path)
	if err != nil {
		return err
	}
	err = do(ctx, onDisk{s, h.Spinup.Slow})
	return errors.Join(err, s.Close())
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
