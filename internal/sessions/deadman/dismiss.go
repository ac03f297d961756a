package deadman

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"holdfast/internal/platform/tasks"
)

// dismissTime bounds the wait for containers of the pools that may still run.
const (
	dismissTime  = 10 * time.Second
	dismissPause = 50 * time.Millisecond
)

// Dismiss ends the deadman of a node without sessions, by StandDown. While a container of
// the pools may still run, it repeats cleanUp. If such a container remains, the deadman
// stays and kills the container at its deadline.
func Dismiss(ctx context.Context, standDown func() error, cleanUp func(context.Context), log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, dismissTime)
	defer cancel()
	for {
		err := standDown()
		if !errors.Is(err, ErrHolds) {
			return err
		}
		if tasks.Sleep(ctx, dismissPause) != nil {
			log.Warn("the engine has not removed all containers of the pools: the deadman kills them at its deadline")
			return nil
		}
		cleanUp(ctx)
	}
}
