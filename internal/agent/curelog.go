package agent

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"holdfast/internal/hosts/doctor/cure"
)

// cureLook is between two looks for cures that were carried out on this host.
const cureLook = 5 * time.Second

// logCures tells of cures that `holdfast doctor cure` carries out beside the agent:
// who reads the agent's log to see what happened to this host finds them there.
func (a *Agent) logCures(ctx context.Context) error {
	journal := cure.Journal{Path: filepath.Join(a.cfg.DataDir, cure.FileName)}
	tick := time.NewTicker(cureLook)
	defer tick.Stop()
	since, changed := time.Now(), time.Time{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		fi, err := os.Stat(journal.Path)
		if err != nil || fi.ModTime().Equal(changed) {
			continue // none was carried out, or no other one
		}
		list, err := journal.List(0)
		if err != nil {
			a.log.Warn("reading the record of cures", "err", err)
			continue
		}
		since, changed = a.tellCures(list, since), fi.ModTime()
	}
}

// tellCures logs those that have ended and began after a moment, and returns the
// moment from which on the others are to be told.
func (a *Agent) tellCures(list []cure.Report, since time.Time) time.Time {
	next := since
	for i := len(list) - 1; i >= 0; i-- {
		r := list[i]
		if !r.At.After(since) || r.Seconds == 0 { // told, or not ended
			continue
		}
		if r.At.After(next) {
			next = r.At
		}
		args := []any{"cure", r.Cure, "target", r.Target, "took", time.Duration(r.Seconds * float64(time.Second)).Round(time.Millisecond)}
		for _, f := range r.Figures {
			args = append(args, f.What, []float64{f.Before, f.After})
		}
		if r.Stopped != "" {
			args = append(args, "stopped", r.Stopped)
		}
		if r.Error != "" {
			args = append(args, "err", r.Error)
		}
		a.log.Info("a cure was carried out on this host", args...)
	}
	return next
}
