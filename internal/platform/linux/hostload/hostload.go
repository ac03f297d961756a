// Package hostload measures how busy a host is: the busy share of its CPUs, the
// pressure on them, and its available memory, from the proc file system.
package hostload

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// Meter reads the load of a host. Its methods may be called from any goroutine.
type Meter struct {
	proc string // the mount point of the proc file system

	mu   sync.Mutex
	last ticks // at the last reading
}

// ticks are the times of all CPUs since the boot, in clock ticks.
type ticks struct{ total, idle, iowait uint64 }

// New returns a Meter that reads the proc file system at proc, usually "/proc".
func New(proc string) *Meter { return &Meter{proc: proc} }

// CPU returns the busy share of all CPUs since the last call, 0 to 1. The first call
// returns the share since the host booted. The source is the first line of
// /proc/stat (proc(5)): user nice system idle iowait irq softirq steal. Idle and
// iowait are not busy.
func (m *Meter) CPU() (float64, error) {
	return m.share(func(t ticks) uint64 { return t.total - t.idle - t.iowait })
}

// Idle returns the share of all CPUs' time since the last call in which a CPU ran nothing
// and had no task that waited for a disk, 0 to 1. A Meter is for CPU or for Idle: both
// begin anew at each call.
func (m *Meter) Idle() (float64, error) { return m.share(func(t ticks) uint64 { return t.idle }) }

// share returns the share of the time since the last call that of counts.
func (m *Meter) share(of func(ticks) uint64) (float64, error) {
	now, err := m.read()
	if err != nil {
		return 0, fmt.Errorf("read CPU times: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	part, total := of(now)-of(m.last), now.total-m.last.total
	m.last = now
	if total == 0 || part > total { // two calls within a tick, or the counters went back
		return 0, nil
	}
	return float64(part) / float64(total), nil
}

func (m *Meter) read() (ticks, error) {
	text, err := os.ReadFile(m.proc + "/stat")
	if err != nil {
		return ticks{}, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return ticks{}, fmt.Errorf("unexpected line %q", line)
	}
	var all [8]uint64
	var t ticks
	for i, field := range fields[1:9] {
		if all[i], err = strconv.ParseUint(field, 10, 64); err != nil {
			return ticks{}, err
		}
		t.total += all[i]
	}
	t.idle, t.iowait = all[3], all[4]
	return t, nil
}

// Memory is a host's memory in bytes.
type Memory struct {
	Total     int64
	Available int64 // what new work can get without swapping
}

// Memory returns MemTotal and MemAvailable of /proc/meminfo.
func (m *Meter) Memory() (Memory, error) {
	fs, err := procfs.NewFS(m.proc)
	if err != nil {
		return Memory{}, fmt.Errorf("read memory: %w", err)
	}
	info, err := fs.Meminfo()
	if err == nil && (info.MemTotalBytes == nil || info.MemAvailableBytes == nil) {
		err = fmt.Errorf("%s/meminfo has no MemTotal or no MemAvailable", m.proc)
	}
	if err != nil {
		return Memory{}, fmt.Errorf("read memory: %w", err)
	}
	return Memory{Total: int64(*info.MemTotalBytes), Available: int64(*info.MemAvailableBytes)}, nil
}

// Pressure returns the share of the last 10 s in which a runnable task waited for a
// CPU, 0 to 1: "some avg10" of the kernel's pressure stall information
// (Documentation/accounting/psi.rst). It returns 0 on a kernel without it.
func (m *Meter) Pressure() (float64, error) {
	text, err := os.ReadFile(m.proc + "/pressure/cpu")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EOPNOTSUPP) { // not built in, or switched off
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read CPU pressure: %w", err)
	}
	var percent float64
	if _, err := fmt.Sscanf(string(text), "some avg10=%f", &percent); err != nil {
		return 0, fmt.Errorf("read CPU pressure: unexpected text %q", text)
	}
	return percent / 100, nil
}
