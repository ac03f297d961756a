package agent

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"holdfast"
)

// load measures how busy the host is, from /proc. The zero value with a root is
// ready to use.
type load struct {
	root string // of the proc file system

	mu        sync.Mutex
	busy, all uint64 // CPU ticks at the last reading
}

// cpu is the busy share of all CPUs since the last call, 0 to 1 (proc(5),
// /proc/stat: user nice system idle iowait irq softirq steal). The first call
// gives the share since the host came up.
func (l *load) cpu() (float64, error) {
	f, err := os.Open(l.root + "/stat")
	if err != nil {
		return 0, fmt.Errorf("reading the CPUs' times: %w", err)
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	if !s.Scan() {
		return 0, fmt.Errorf("reading the CPUs' times: %s is empty", f.Name())
	}
	fields := strings.Fields(s.Text())
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, fmt.Errorf("reading the CPUs' times: %q is not what was expected", s.Text())
	}
	var all, idle uint64
	for i, field := range fields[1:9] {
		n, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("reading the CPUs' times: %w", err)
		}
		all += n
		if i == 3 || i == 4 {
			idle += n
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	busy := all - idle
	dBusy, dAll := busy-l.busy, all-l.all
	l.busy, l.all = busy, all
	if dAll == 0 || dBusy > dAll { // called twice in a tick, or the counters went back
		return 0, nil
	}
	return float64(dBusy) / float64(dAll), nil
}

// memory is what the host has and what new work could get without swapping.
func (l *load) memory() (holdfast.Memory, error) {
	f, err := os.Open(l.root + "/meminfo")
	if err != nil {
		return holdfast.Memory{}, fmt.Errorf("reading the memory: %w", err)
	}
	defer f.Close()
	var m holdfast.Memory
	for s := bufio.NewScanner(f); s.Scan(); {
		name, rest, _ := strings.Cut(s.Text(), ":")
		fields := strings.Fields(rest)
		if len(fields) == 0 {
			continue
		}
		kib, err := strconv.ParseInt(fields[0], 10, 64)
		if err != nil {
			continue
		}
		switch name {
		case "MemTotal":
			m.Total = kib << 10
		case "MemAvailable":
			m.Available = kib << 10
		}
	}
	if m.Total == 0 {
		return m, fmt.Errorf("reading the memory: %s has no MemTotal", f.Name())
	}
	return m, nil
}

// pressure is the share of the last 10 s in which something that could run
// waited for a CPU, 0 to 1: "some avg10" of the kernel's pressure stall
// information (Documentation/accounting/psi.rst). A kernel without it gives 0.
func (l *load) pressure() (float64, error) {
	text, err := os.ReadFile(l.root + "/pressure/cpu")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EOPNOTSUPP) { // not built in, or switched off
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading the CPUs' pressure: %w", err)
	}
	var share float64
	if _, err := fmt.Sscanf(string(text), "some avg10=%f", &share); err != nil {
		return 0, fmt.Errorf("reading the CPUs' pressure: %q is not what was expected", text)
	}
	return share / 100, nil
}
