package job

import (
	"context"
	"log/slog"
	"time"

	"holdfast/internal/platform/tasks"
)

const (
	// sweepInterval is how often RunSweeper removes the leftovers of killed jobs. The
	// jobs' own watchers remove most of them. If the owner of a job cannot be checked,
	// its leftovers are removed after an hour.
	sweepInterval = time.Hour
	sweepTimeout  = 2 * time.Minute
)

// RunSweeper removes the leftovers of jobs (`holdfast run`) with dead owners, until ctx
// is done.
func RunSweeper(ctx context.Context, engine Cleaner, self Owner, log *slog.Logger) error {
	return tasks.Every(ctx, sweepInterval, func() {
		limited, cancel := context.WithTimeout(ctx, sweepTimeout)
		defer cancel()
		n, err := Sweep(limited, engine, self, log)
		if err != nil && ctx.Err() == nil {
			log.Warn("what killed jobs left cannot be removed", "err", err)
		}
		if n > 0 {
			log.Info("removed what killed jobs left", "jobs", n)
		}
	})
}
