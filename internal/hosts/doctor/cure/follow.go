package cure

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"holdfast/internal/platform/tasks"
)

// followInterval is between two reads of the journal.
const followInterval = 5 * time.Second

// Follow logs the cures that `holdfast doctor cure` carries out on this host, from
// the journal in dir, until ctx is done: the agent's log shows everything that was
// done to the host.
func Follow(ctx context.Context, dir string, log *slog.Logger) error {
	journal := Journal{Path: filepath.Join(dir, FileName)}
	since, changed := time.Now(), time.Time{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tasks.Tick(followInterval):
		}
		fi, err := os.Stat(journal.Path)
		if err != nil || fi.ModTime().Equal(changed) {
			continue // no journal, or no new entry
		}
		list, err := journal.List(0)
		if err != nil {
			log.Warn("the journal of cures cannot be read", "err", err)
			continue
		}
		since, changed = logEnded(log, list, since), fi.ModTime()
	}
}

// logEnded logs the cures that began after since and have ended. It returns the time
// after which the remaining ones began.
func logEnded(log *slog.Logger, list []Report, since time.Time) time.Time {
	next := since
	for i := len(list) - 1; i >= 0; i-- {
		r := list[i]
		if !r.At.After(since) || r.Seconds == 0 { // logged before, or still running
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
		log.Info("a cure was carried out on this host", args...)
	}
	return next
}
