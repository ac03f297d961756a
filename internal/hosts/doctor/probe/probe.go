// Package probe reads figures from a host. A probe only does input and output: it reads
// the kernel's files below roots that tests can replace with directories, or lets the
// kernel count, and returns facts. It judges nothing.
//
// A probe returns an error for what it cannot observe. It never returns zero for an
// unknown value.
package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	"holdfast"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/kfile"
	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/platform/linux/tracepoint"
)

// Host is the host to examine.
type Host struct {
	Proc    proc.FS       // the procfs, /proc
	Sys     string        // the sysfs, /sys
	Kmsg    string        // the kernel's log, /dev/kmsg; "" is none
	Groups  cgroup.Mounts // the hierarchies of control groups
	Scratch string        // directory for the test of the disk; "" is diskdir.Temp
	// Child is the command that runs the role RoleAlloc. If it is empty, memory
	// allocation is not tested.
	Child []string
	// Symbols returns the kernel's symbols. If it is nil, each probe that needs them
	// reads them.
	Symbols func() (*tracepoint.Symbols, error)
}

// LoadSymbols reads the kernel symbols that probes need.
func (h Host) LoadSymbols() (*tracepoint.Symbols, error) {
	if h.Symbols != nil {
		return h.Symbols()
	}
	return tracepoint.LoadSymbols(string(h.Proc), "rtnl_mutex")
}

// Probe measures one aspect of a host.
type Probe struct {
	Name string // memcg
	Sees string // what cannot be observed without it
	// Gives lists the names of the facts that it may return.
	Gives []string
	// Busy means that the probe loads the machine. An examination reads such probes one
	// at a time, before the others.
	Busy bool
	// Once means that the probe reads the state at one moment. An examination reads it
	// while the others observe.
	Once bool
	// Rare means that the probe reads slowly changing values at a higher cost. For an
	// agent one reading per minute is enough.
	Rare bool
	Open Open
}

// Open begins a measurement at the time now.
type Open func(ctx context.Context, h Host, now time.Time) (Series, error)

// Series is an open probe. It is for one goroutine.
type Series interface {
	// Read covers the time since the last Read without an error, or since Open. Facts
	// returned with an error are valid.
	Read(ctx context.Context, now time.Time) ([]fact.Fact, error)
	Close() error
}

// All returns the probes of an examination.
func All() []Probe {
	return []Probe{
		Machine(),
		allocProbe(),
		hostProbe(),
		memoryProbe(),
		slabProbe(),
		dentryProbe(),
		memcgProbe(),
		pinsProbe(),
		pinnedProbe(),
		groupsProbe(),
		tasksProbe(),
		stuckProbe(),
		cpuProbe(),
		saturationProbe(),
		diskProbe(),
		diskUseProbe(),
		diskLimitsProbe(),
		conntrackProbe(),
		inotifyProbe(),
		fileGrowthProbe(),
		fileLocksProbe(),
		limitsProbe(),
		neighboursProbe(),
		socketMemoryProbe(),
		mergingProbe(),
		hugepagesProbe(),
		cachesProbe(),
		oomKillsProbe(),
		dirtyProbe(),
		profilerProbe(),
		tracingProbe(),
		stopsProbe(),
		freezesProbe(),
		growthProbe(),
		fillingProbe(),
		logsProbe(),
		startsProbe(),
		namespacesProbe(),
		drainsProbe(0),
		reclaimProbe(),
		locksProbe(),
		rstatProbe(),
		blockProbe(),
		callsProbe(),
	}
}

// AllStanding returns the probes that stay open in an agent: those of the kernel's files,
// and those of cheap tracepoints. A file is thus read once per round instead of twice,
// and tracepoints are attached once instead of every ten seconds.
func AllStanding() []Probe {
	return []Probe{
		hostProbe(),
		slabProbe(),
		memoryProbe(),
		dentryProbe(),
		memcgProbe(),
		groupsProbe(),
		standingStuckProbe(),
		cpuProbe(),
		diskProbe(),
		hostConntrackProbe(),
		drainsProbe(namedFrom),
		reclaimProbe(),
		removalsProbe(),
	}
}

// Read reads one of the probes of All once.
func Read(ctx context.Context, h Host, name string) ([]fact.Fact, error) {
	for _, p := range All() {
		if p.Name != name {
			continue
		}
		s, err := p.Open(ctx, h, time.Now())
		if err != nil {
			return nil, err
		}
		facts, err := s.Read(ctx, time.Now())
		return facts, errors.Join(err, s.Close())
	}
	return nil, fmt.Errorf("there is no probe %q", name)
}

// Hint returns what to do about an error of a probe, "" if nothing is known.
func Hint(err error) string {
	if h := holdfast.HintOf(err); h != "" {
		return h
	}
	if errors.Is(err, fs.ErrPermission) {
		return "run it as root"
	}
	return ""
}

// maxFile bounds the size of a kernel file that is read here, in bytes. The longest is
// mountinfo.
const maxFile = 64 << 20

func read(path string) (string, error) {
	b, err := kfile.Read(path, maxFile)
	return string(b), err
}

// number reads a file that holds one number.
func number(path string) (float64, error) {
	text, err := read(path)
	if err != nil {
		return 0, err
	}
	v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return v, nil
}

// parsed reads a file of the procfs with a parser of Prometheus' library.
func parsed[T any](h Host, parse func(procfs.FS) (T, error)) (T, error) {
	fs, err := procfs.NewFS(string(h.Proc))
	if err != nil {
		var none T
		return none, err
	}
	return parse(fs)
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

// host makes a fact about the whole host.
func host(name string, v float64, u fact.Unit) fact.Fact {
	return fact.Fact{Name: name, Value: v, Unit: u}
}

// largest returns the n facts with the largest values, the largest first.
func largest(fs []fact.Fact, n int) []fact.Fact {
	sort.SliceStable(fs, func(i, j int) bool { return cmp.Less(fs[j].Value, fs[i].Value) })
	return fs[:min(len(fs), n)]
}

// gone reports whether a file or directory has been removed in the meantime.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) }
