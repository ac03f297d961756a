// Package probe looks at a host. A probe does nothing but input and output: it
// reads the kernel's files below roots that tests replace by directories, or has
// the kernel count, and turns that into facts. It judges nothing.
//
// What a probe cannot see it says, as an error; it never gives a zero for what it
// does not know.
package probe

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/kfile"
	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/platform/linux/tracepoint"
)

// Host is where to look.
type Host struct {
	Proc    proc.FS       // the procfs, /proc
	Sys     string        // the sysfs, /sys
	Groups  cgroup.Mounts // the hierarchies of control groups
	Scratch string        // directory for the check of the disk; "" is the system's temporary one
	// Child is the command that plays RoleAlloc; empty: memory allocation is
	// not tried.
	Child []string
	// Symbols are the kernel's; nil: each probe that needs them reads them.
	Symbols func() (*tracepoint.Symbols, error)
}

// LoadSymbols reads those of the kernel that probes ask for.
func (h Host) LoadSymbols() (*tracepoint.Symbols, error) {
	if h.Symbols != nil {
		return h.Symbols()
	}
	return tracepoint.LoadSymbols(string(h.Proc), "rtnl_mutex")
}

// Probe is one way to look.
type Probe struct {
	Name string // memcg
	Sees string // what cannot be seen without it
	// Gives are the names of the facts that it may find.
	Gives []string
	// Busy says that it loads the machine, and so comes before the others and
	// alone.
	Busy bool
	// Once says that it reads what is there at one moment: it is read while the
	// others watch.
	Once bool
	// Start begins the look. Each Finish that is returned is called once.
	Start func(context.Context, Host) (Finish, error)
}

// Finish ends a look that took the given time and returns what was seen. Facts
// that come beside an error are good.
type Finish func(ctx context.Context, over time.Duration) ([]fact.Fact, error)

// All are the probes.
func All() []Probe {
	return []Probe{
		machineProbe(),
		allocProbe(),
		hostProbe(),
		memoryProbe(),
		dentryProbe(),
		memcgProbe(),
		pinsProbe(),
		pinnedProbe(),
		groupsProbe(),
		tasksProbe(),
		cpuProbe(),
		diskProbe(),
		conntrackProbe(),
		inotifyProbe(),
		drainsProbe(),
		reclaimProbe(),
		locksProbe(),
		rstatProbe(),
		blockProbe(),
		callsProbe(),
	}
}

// Hint is what to do about an error of a probe, "" where nothing is known.
func Hint(err error) string {
	if h := holdfast.HintOf(err); h != "" {
		return h
	}
	if errors.Is(err, fs.ErrPermission) {
		return "run it as root"
	}
	return ""
}

// maxFile bounds each of the kernel's files that are read here. The longest is
// mountinfo.
const maxFile = 64 << 20

func read(path string) (string, error) {
	b, err := kfile.Read(path, maxFile)
	return string(b), err
}

// numbers reads lines of a name and a number: "nr_throttled 7", "MemTotal: 7 kB".
func numbers(text string) map[string]float64 {
	m := make(map[string]float64)
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		if v, err := strconv.ParseFloat(f[1], 64); err == nil {
			m[strings.TrimSuffix(f[0], ":")] = v
		}
	}
	return m
}

// floats reads all numbers of a line.
func floats(line string) ([]float64, error) {
	var vs []float64
	for _, f := range strings.Fields(line) {
		v, err := strconv.ParseFloat(f, 64)
		if err != nil {
			return nil, fmt.Errorf("%w: %q", proc.ErrFormat, f)
		}
		vs = append(vs, v)
	}
	return vs, nil
}

// pressure reads the total stall times of a pressure file in seconds,
// Documentation/accounting/psi.rst:
//
//	full avg10=0.00 avg60=0.00 avg300=0.00 total=123456
func pressure(text string) map[string]float64 {
	m := make(map[string]float64)
	for line := range strings.Lines(text) {
		kind, rest, _ := strings.Cut(line, " ")
		if _, total, ok := strings.Cut(rest, "total="); ok {
			if v, err := strconv.ParseFloat(strings.TrimSpace(total), 64); err == nil {
				m[kind] = v / 1e6
			}
		}
	}
	return m
}

// host makes a fact about the whole host.
func host(name string, v float64, u fact.Unit) fact.Fact {
	return fact.Fact{Name: name, Value: v, Unit: u}
}

// rate is what a counter grew by per second, and whether it is known: a counter
// that went backwards is not.
func rate(before, after float64, over time.Duration) (float64, bool) {
	if after < before || over <= 0 {
		return 0, false
	}
	return (after - before) / over.Seconds(), true
}

// gone reports whether what was to be read has vanished meanwhile.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) }
