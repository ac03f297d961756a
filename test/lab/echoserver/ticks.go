package echoserver

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

	"holdfast/internal/platform/linux/boottime"
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
	BootedEnv  = "BOOTED" // CLOCK_REALTIME when the host booted, in nanoseconds: a sandbox has a CLOCK_BOOTTIME of its own
	TickEvery  = 50 * time.Millisecond
	TickSuffix = ".ticks"
)

// ticks is the file of this life.
type ticks struct {
	dir        string
	file       *os.File
	key, epoch string
	gone       string // file; "" where there is one machine only
	booted     int64  // BootedEnv; 0 for none
}

// openTicks makes the file and writes the first tick.
func openTicks(dir, key, epoch string) (*ticks, error) {
	t := &ticks{dir: dir, key: key}
	if text := os.Getenv(BootedEnv); text != "" {
		var err error
		if t.booted, err = strconv.ParseInt(text, 10, 64); err != nil {
			return nil, fmt.Errorf("ticks: %s: %w", BootedEnv, err)
		}
	}
	if err := t.begin(epoch, os.Getenv(MachineEnv)); err != nil {
		return nil, err
	}
	return t, t.tick()
}

// begin begins a life.
func (t *ticks) begin(epoch, machine string) error {
	t.epoch, t.gone = epoch, ""
	if machine != "" {
		t.gone = filepath.Join(t.dir, machine+GoneSuffix)
	}
	if err := t.machine(); err != nil {
		return err
	}
	name := fmt.Sprintf("%s-%s-%d%s", t.key, t.epoch, t.now(), TickSuffix)
	f, err := os.OpenFile(filepath.Join(t.dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("ticks: %w", err)
	}
	if t.file != nil {
		t.file.Close()
	}
	t.file = f
	return nil
}

// now is CLOCK_BOOTTIME of the host.
func (t *ticks) now() int64 {
	if t.booted != 0 {
		return time.Now().UnixNano() - t.booted
	}
	return int64(boottime.Now())
}

// specEnviron is the environment of the container that this is in now. A process that
// goes on from its memory under gVisor still has that of the one before.
const specEnviron = "/proc/gvisor/spec_environ"

// goesOn begins another life where this one has been carried into another container.
// It is asked before each tick, so that none of another life is written for this one,
// but for the one that was being written.
func (t *ticks) goesOn() error {
	text, err := os.ReadFile(specEnviron)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("ticks: %w", err)
	}
	env := map[string]string{}
	for _, word := range strings.FieldsFunc(string(text), func(r rune) bool { return r == 0 || r == '\n' }) {
		name, value, _ := strings.Cut(word, "=")
		env[name] = value
	}
	if epoch := env["HOLDFAST_EPOCH"]; epoch != "" && epoch != t.epoch {
		return t.begin(epoch, env[MachineEnv])
	}
	return nil
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
	if _, err := fmt.Fprintf(t.file, "%s %s %d\n", t.key, t.epoch, t.now()); err != nil {
		return fmt.Errorf("ticks: %w", err)
	}
	return nil
}

// run ticks until ctx is done. A server that cannot show that it lives must not
// live on: an observer of the ticks would take it for dead.
func (t *ticks) run(ctx context.Context) error {
	defer func() { t.file.Close() }()
	every := time.NewTicker(TickEvery)
	defer every.Stop()
	for {
		select {
		case <-every.C:
			err := t.goesOn()
			if err == nil {
				err = t.machine()
			}
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
