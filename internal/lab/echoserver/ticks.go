package echoserver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"holdfast/internal/linux/boottime"
)

// TicksEnv names a directory. Where it is set, the server shows that it is
// alive: into a file of its own in there it appends "KEY EPOCH NANOSECONDS" every
// TickEvery, the first before it listens. The time is CLOCK_BOOTTIME's, which
// all containers of a host share.
const (
	TicksEnv   = "TICKS"
	TickEvery  = 20 * time.Millisecond
	TickSuffix = ".ticks"
)

// ticks is the file of this life.
type ticks struct {
	file       *os.File
	key, epoch string
}

// openTicks makes the file and writes the first tick.
func openTicks(dir string) (*ticks, error) {
	t := &ticks{key: os.Getenv("HOLDFAST_SESSION"), epoch: os.Getenv("HOLDFAST_EPOCH")}
	name := fmt.Sprintf("%s-%s-%d%s", t.key, t.epoch, boottime.Now(), TickSuffix)
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("ticks: %w", err)
	}
	t.file = f
	return t, t.tick()
}

// tick is one write(2), which a kill does not split.
func (t *ticks) tick() error {
	if _, err := fmt.Fprintf(t.file, "%s %s %d\n", t.key, t.epoch, boottime.Now()); err != nil {
		return fmt.Errorf("ticks: %w", err)
	}
	return nil
}

// run ticks until ctx is done. A server that cannot show that it lives must not
// live on: who looks at the ticks would think it dead.
func (t *ticks) run(ctx context.Context) error {
	defer t.file.Close()
	every := time.NewTicker(TickEvery)
	defer every.Stop()
	for {
		select {
		case <-every.C:
			if err := t.tick(); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}
