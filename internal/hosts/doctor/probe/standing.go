package probe

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/cgroup"
)

// Standing is a probe that stays open in an agent. Each Read covers the time since the
// one before. A file is thus read once per round instead of twice, and tracepoints are
// attached once instead of every ten seconds.
type Standing struct {
	Name  string
	Sees  string   // what cannot be observed without it
	Gives []string // the names of the facts that it may return
	// Rare means that it reads slowly changing values at a higher cost; one reading per
	// minute is enough.
	Rare bool
	Open func(ctx context.Context, h Host, now time.Time) (Series, error)
}

// Series is an open standing probe. It is for one goroutine.
type Series interface {
	// Read covers the time since the last Read without an error, or since Open. Facts
	// returned with an error are valid.
	Read(ctx context.Context, now time.Time) ([]fact.Fact, error)
	Close() error
}

// AllStanding returns the standing probes: those of the kernel's files, and those of
// cheap tracepoints.
func AllStanding() []Standing {
	return []Standing{
		moment("host", true, hostProbe(), readHost),
		{Name: "slab", Sees: "the largest slab caches", Gives: []string{fact.SlabCache}, Rare: true, Open: momentOf(readCaches)},
		standingMemory(),
		standingDentries(),
		moment("memcg", false, memcgProbe(), readMemcg),
		standingGroups(),
		standingCPU(),
		standingDisk(),
		{Name: "conntrack", Sees: "use of the host's own connection tracking table", Gives: []string{fact.ConnHost}, Open: momentOf(readHostConntrack)},
		standingDrains(),
		standingReclaim(),
		standingRemovals(),
	}
}

// moment returns a standing probe that reads the current values, as the given probe does.
func moment(name string, rare bool, p Probe, read func(Host) ([]fact.Fact, error)) Standing {
	return Standing{Name: name, Sees: p.Sees, Gives: p.Gives, Rare: rare, Open: momentOf(read)}
}

func momentOf(read func(Host) ([]fact.Fact, error)) func(context.Context, Host, time.Time) (Series, error) {
	return func(_ context.Context, h Host, _ time.Time) (Series, error) {
		return current(func() ([]fact.Fact, error) { return read(h) }), nil
	}
}

// current is a Series of values that need no previous reading.
type current func() ([]fact.Fact, error)

func (r current) Read(context.Context, time.Time) ([]fact.Fact, error) { return r() }
func (r current) Close() error                                         { return nil }

// counting is a Series of counters. Each reading is compared with the one before.
type counting[T any] struct {
	at     time.Time
	before T
	read   func() (T, error)
	facts  func(before, after T, over time.Duration) ([]fact.Fact, error)
}

func openCounting[T any](now time.Time, read func() (T, error), facts func(before, after T, over time.Duration) ([]fact.Fact, error)) (Series, error) {
	before, err := read()
	if err != nil {
		return nil, err
	}
	return &counting[T]{at: now, before: before, read: read, facts: facts}, nil
}

func (c *counting[T]) Read(_ context.Context, now time.Time) ([]fact.Fact, error) {
	after, err := c.read()
	if err != nil {
		return nil, err
	}
	fs, err := c.facts(c.before, after, now.Sub(c.at))
	c.before, c.at = after, now
	return fs, err
}

func (c *counting[T]) Close() error { return nil }

func standingMemory() Standing {
	return Standing{
		Name: "memory", Sees: "memory, slab, fragmentation, memory pressure of the host",
		Gives: []string{fact.MemTotal, fact.SlabTotal, fact.SlabReclaim, fact.MemPSIFull, fact.AllocStalls, fact.CompactStalls, fact.HighOrderFree},
		Open: func(_ context.Context, h Host, now time.Time) (Series, error) {
			return openCounting(now, func() (stalls, error) { return readStalls(h), nil },
				func(before, after stalls, over time.Duration) ([]fact.Fact, error) {
					more, err := readPages(h)
					return append(after.since(before, over), more...), err
				})
		},
	}
}

func standingDentries() Standing {
	p := dentryProbe()
	return Standing{Name: p.Name, Sees: p.Sees, Gives: p.Gives, Open: func(_ context.Context, h Host, _ time.Time) (Series, error) {
		size := dentryBytes(h) // constant while the kernel runs
		return current(func() ([]fact.Fact, error) { return countDentries(h, size) }), nil
	}}
}

func standingGroups() Standing {
	p := groupsProbe()
	return Standing{Name: p.Name, Sees: p.Sees, Gives: p.Gives, Open: func(_ context.Context, h Host, now time.Time) (Series, error) {
		h.Groups = withCounters(h.Groups)
		type readings struct {
			groups map[string]sample
			top    map[string]float64 // CPU time of all groups
			known  bool               // whether top is known
			err    error              // why some groups are left out
		}
		return openCounting(now, func() (readings, error) {
			groups, err := readGroups(h)
			if len(groups) == 0 && err != nil {
				return readings{}, err
			}
			r := readings{groups: groups, err: err}
			r.top, r.known = topCPU(h)
			return r, nil
		}, func(before, after readings, over time.Duration) ([]fact.Fact, error) {
			fs := groupFacts(before.groups, after.groups, over)
			if before.known && after.known {
				fs = append(fs, host(fact.GroupsCPU, grown(before.top, after.top)/over.Seconds(), fact.Share))
			}
			return fs, after.err
		})
	}}
}

// withCounters returns the hierarchies in which sample.read finds counters.
func withCounters(all cgroup.Mounts) cgroup.Mounts {
	var some cgroup.Mounts
	for _, m := range all {
		g := cgroup.Group{Controllers: m.Controllers}
		if m.V2 || g.Has("cpu") || g.Has("cpuacct") || g.Has("memory") || g.Has("pids") || g.Has("blkio") {
			some = append(some, m)
		}
	}
	return some
}

func standingCPU() Standing {
	type readings struct {
		cpus    map[string]ticks
		drops   float64 // negative if unknown
		waited  float64 // s in which a task waited for a CPU
		psi     bool
		dropErr error
	}
	return Standing{
		Name: "cpu", Sees: "how busy the CPUs are, waits for them, softirqs, packets dropped at a CPU",
		Gives: []string{fact.HostCPUs, fact.CPUBusy, fact.CPUSoftirq, fact.NetDrops, fact.CPUSome},
		Open: func(_ context.Context, h Host, now time.Time) (Series, error) {
			return openCounting(now, func() (readings, error) {
				var r readings
				var err error
				if r.cpus, err = readCPUs(h); err != nil {
					return r, err
				}
				r.drops, r.dropErr = readDrops(h)
				if text, err := read(string(h.Proc) + "/pressure/cpu"); err == nil {
					r.waited, r.psi = pressure(text)["some"]
				}
				return r, nil
			}, func(before, after readings, over time.Duration) ([]fact.Fact, error) {
				fs := cpuFacts(before.cpus, after.cpus)
				if before.dropErr == nil && after.dropErr == nil && after.drops >= before.drops {
					fs = append(fs, host(fact.NetDrops, after.drops-before.drops, fact.Count))
				}
				if v, ok := rate(before.waited, after.waited, over); ok && before.psi && after.psi {
					fs = append(fs, host(fact.CPUSome, min(1, v), fact.Share))
				}
				return fs, after.dropErr
			})
		},
	}
}

func standingDisk() Standing {
	type readings struct {
		disks   map[string][]float64
		stalled float64
		psi     bool
	}
	p := diskProbe()
	return Standing{Name: p.Name, Sees: p.Sees, Gives: p.Gives, Open: func(_ context.Context, h Host, now time.Time) (Series, error) {
		return openCounting(now, func() (readings, error) {
			var r readings
			var err error
			r.disks, err = readDisks(h)
			r.stalled, r.psi = ioStall(h)
			return r, err
		}, func(before, after readings, over time.Duration) ([]fact.Fact, error) {
			fs := diskFacts(before.disks, after.disks, over)
			if v, ok := rate(before.stalled, after.stalled, over); ok && before.psi && after.psi {
				fs = append(fs, host(fact.IOFull, v, fact.Share))
			}
			return fs, nil
		})
	}}
}

// readHostConntrack reads the use of the connection tracking table of this network
// namespace. The tables of other namespaces require a pass over every process, which a
// burst makes.
func readHostConntrack(h Host) ([]fact.Fact, error) {
	dir := string(h.Proc) + "/sys/net/netfilter/"
	var v [2]float64
	for i, name := range []string{"nf_conntrack_count", "nf_conntrack_max"} {
		text, err := read(dir + name)
		if gone(err) {
			return nil, nil // the kernel does not track connections
		}
		if err == nil {
			v[i], err = strconv.ParseFloat(strings.TrimSpace(text), 64)
		}
		if err != nil {
			return nil, err
		}
	}
	if v[1] <= 0 {
		return nil, errors.New("nf_conntrack_max is 0")
	}
	return []fact.Fact{host(fact.ConnHost, v[0]/v[1], fact.Share)}, nil
}
