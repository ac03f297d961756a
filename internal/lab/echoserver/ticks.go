package echoserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"holdfast/internal/linux/boottime"
)

// TicksEnv names a directory. Where it is set, the server shows that it is
// alive: into a file of its own in there it appends "KEY EPOCH NANOSECONDS" every
// TickEvery, the first before it listens. One in a warm container, which does not know
// its key from the start, begins when it hears it, before it says that it has. The
// time is CLOCK_BOOTTIME's, which all containers of a host share.
//
// MachineEnv names the machine that the server is on, where one stands for many.
// A file of that name with GoneSuffix in the same directory says that the machine
// went away: every server of it ends at once whose epoch is not over the number
// in the file, also one that the engine of them all starts only then.
const (
	TicksEnv   = "TICKS"
	MachineEnv = "MACHINE"
	GoneSuffix = ".gone"
	TickEvery  = 50 * time.Millisecond
	TickSuffix = ".ticks"
)

// ticks is the file of this life.
type ticks struct {
	file       *os.File
	key, epoch string
	gone       string // file; "" where there is one machine only
}

// openTicks makes the file and writes the first tick.
func openTicks(dir, key, epoch string) (*ticks, error) {
	t := &ticks{key: key, epoch: epoch}
	if machine := os.Getenv(MachineEnv); machine != "" {
		t.gone = filepath.Join(dir, machine+GoneSuffix)
	}
	if err := t.machine(); err != nil {
		return nil, err
	}
	name := fmt.Sprintf("%s-%s-%d%s", t.key, t.epoch, boottime.Now(), TickSuffix)
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("ticks: %w", err)
	}
	t.file = f
	return t, t.tick()
}

// machine reports that the machine went away.
func (t *ticks) machine() error {
	if t.gone == "" {
		return nil
	}
	b, err := os.ReadFile(t.gone)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("ticks: %w", err)
	}
	last, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil {
		return fmt.Errorf("ticks: %s: %w", t.gone, err)
	}
	if mine, err := strconv.ParseInt(t.epoch, 10, 64); err != nil || mine <= last {
		return fmt.Errorf("ticks: the machine of epoch %s went away in %d", t.epoch, last)
	}
	return nil
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
			err := t.machine()
			if err == nil {
				err = t.tick()
			}
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}
