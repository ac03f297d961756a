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

// TicksEnv names a directory. If it is set, the server proves that it is alive: every
// TickEvery it appends "KEY EPOCH NANOSECONDS" to a file of its own in the directory. The
// first tick precedes the listen. A server in a warm container begins when it receives its
// key, before it answers. The time is CLOCK_BOOTTIME, which all containers of a host share.
//
// MachineEnv names the simulated machine of the server, if one host simulates several. A
// file of that name with GoneSuffix in the same directory means that the machine is gone.
// Every server of the machine whose epoch is not above the number in the file ends at once,
// even if the engine starts it only then.
const (
	TicksEnv   = "TICKS"
	MachineEnv = "MACHINE"
	GoneSuffix = ".gone"
	BootedEnv  = "BOOTED" // CLOCK_REALTIME when the host booted, in nanoseconds: a sandbox has a CLOCK_BOOTTIME of its own
	TickEvery  = 50 * time.Millisecond
	TickSuffix = ".ticks"
)

// ticks is the file with the ticks of this container's life.
type ticks struct {
	dir        string
	file       *os.File
	key, epoch string
	gone       string // file; "" without MachineEnv
	booted     int64  // BootedEnv; 0 for none
}

// openTicks creates the file and writes the first tick.
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

// now returns CLOCK_BOOTTIME of the host.
func (t *ticks) now() int64 {
	if t.booted != 0 {
		return time.Now().UnixNano() - t.booted
	}
	return int64(boottime.Now())
}

// specEnviron returns the environment of the current container. A process that gVisor
// restored still has the environment of the previous container.
const specEnviron = "/proc/gvisor/spec_environ"

// goesOn begins a new life if the process was moved into another container. It is called
// before each tick, so that at most the tick in progress is written for the wrong life.
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
		t.key = env["HOLDFAST_SESSION"] // of a copy: its own
		return t.begin(epoch, env[MachineEnv])
	}
	return nil
}

// machine reports whether the machine is gone.
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

// tick writes one tick with one write(2), which a kill does not split.
func (t *ticks) tick() error {
	if _, err := fmt.Fprintf(t.file, "%s %s %d\n", t.key, t.epoch, t.now()); err != nil {
		return fmt.Errorf("ticks: %w", err)
	}
	return nil
}

// run ticks until ctx is done. After a failed write the server must end, because an
// observer of the ticks takes it for dead.
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
