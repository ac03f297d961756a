package probe

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"holdfast"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/tracepoint"
)

// shownPlaces is the number of processes and kernel paths of a count that become facts.
const shownPlaces = 20

// namedFrom is the rate of drains per second from which an agent names their callers.
// Naming needs the kernel's symbols and a walk over the control groups.
const namedFrom = 50

// drainsProbe counts drains of the LRU batches of all CPUs: one work item for each CPU,
// under one mutex (lru_add_drain_all, mm/swap.c). It names the callers if the rate is at
// least nameFrom.
func drainsProbe(nameFrom float64) Probe {
	return Probe{
		Name: "drains", Sees: "posix_fadvise storms",
		Gives: []string{fact.Drains, fact.DrainsBy},
		Open: tallied(countDrains, func(h Host, places []tracepoint.Place, over time.Duration) ([]fact.Fact, error) {
			rate := rateOf(places, over)
			fs := []fact.Fact{host(fact.Drains, rate, fact.PerSecond)}
			if rate < nameFrom {
				return fs, nil
			}
			symbols, err := h.LoadSymbols()
			return append(fs, byPlace(newResolver(h, symbols), places, fact.DrainsBy, over)...), err
		}),
	}
}

// countDrains counts the work items of drains until the tally is closed.
func countDrains(h Host) (*tracepoint.Tally, error) {
	work, err := tracepoint.Address(string(h.Proc), "lru_add_drain_per_cpu")
	if err != nil {
		return nil, err
	}
	return tracepoint.CountWork(work)
}

// rstatProbe counts waits for the lock of cgroup statistics, by process.
func rstatProbe() Probe {
	return Probe{
		Name: "rstat", Sees: "readers of cgroup statistics that block others",
		Gives: []string{fact.RstatWaits, fact.RstatBy},
		Open: tallied(func(Host) (*tracepoint.Tally, error) {
			t, err := tracepoint.CountEvent("cgroup_rstat_lock_contended", false)
			return t, sinceLinux("6.10", err)
		}, func(h Host, places []tracepoint.Place, over time.Duration) ([]fact.Fact, error) {
			by := byPlace(newResolver(h, nil), places, fact.RstatBy, over)
			return append(by, host(fact.RstatWaits, rateOf(places, over), fact.PerSecond)), nil
		}),
	}
}

// locksProbe measures waits for the kernel's sleeping locks.
func locksProbe() Probe {
	return Probe{
		Name: "locks", Sees: "waits for locks in the kernel, rtnl among them",
		Gives: []string{fact.LockSeen, fact.LockWait, fact.RtnlWait},
		Open: tallied(func(h Host) (*tracepoint.Tally, error) {
			if _, err := h.LoadSymbols(); err != nil {
				return nil, err
			}
			t, err := tracepoint.LockWaits()
			return t, sinceLinux("5.19", err)
		}, func(h Host, places []tracepoint.Place, over time.Duration) ([]fact.Fact, error) {
			symbols, err := h.LoadSymbols()
			if err != nil {
				return nil, err
			}
			return lockFacts(newResolver(h, symbols), places, over), nil
		}),
	}
}

// sinceLinux adds to an error the version of Linux that has the missing tracepoint.
func sinceLinux(version string, err error) error {
	if errors.Is(err, tracepoint.ErrNoTracepoint) {
		return fmt.Errorf("%w (Linux %s has it)", err, version)
	}
	return err
}

// slowReclaimFrom is the duration above which a reclaim counts as slow. A healthy one
// takes 16 to 32 µs (docs/doctor.md).
const slowReclaimFrom = time.Millisecond

// reclaimProbe times the reclaims of memory cgroups.
func reclaimProbe() Probe {
	return Probe{
		Name: "reclaim", Sees: "how long a reclaim of a memory cgroup takes, and which programs reclaim",
		Gives: []string{fact.ReclaimCalls, fact.ReclaimP50, fact.ReclaimP99, fact.ReclaimSlow, fact.ReclaimBy},
		Open: func(ctx context.Context, h Host, now time.Time) (Series, error) {
			calls, err := timed(tracepoint.ReclaimLatency, reclaimFacts)(ctx, h, now)
			if err != nil {
				return nil, err
			}
			by, err := tallied(func(Host) (*tracepoint.Tally, error) {
				return tracepoint.CountEvent("mm_vmscan_memcg_reclaim_begin", false)
			}, func(h Host, places []tracepoint.Place, over time.Duration) ([]fact.Fact, error) {
				return byPlace(newResolver(h, nil), places, fact.ReclaimBy, over), nil
			})(ctx, h, now)
			if err != nil {
				return nil, errors.Join(err, calls.Close())
			}
			return both{calls, by}, nil
		},
	}
}

func reclaimFacts(_ Host, before, after tracepoint.Histogram, over time.Duration) ([]fact.Fact, error) {
	h := after.Since(before)
	fs := []fact.Fact{
		host(fact.ReclaimCalls, float64(h.Count()), fact.Count),
		host(fact.ReclaimSlow, float64(h.Over(slowReclaimFrom))/over.Seconds(), fact.PerSecond),
	}
	if h.Count() > 0 { // without a reclaim there is no duration
		fs = append(fs, host(fact.ReclaimP50, ms(h.Quantile(0.5)), fact.Millis), host(fact.ReclaimP99, ms(h.Quantile(0.99)), fact.Millis))
	}
	return fs, nil
}

// blockProbe measures the duration of the disks' requests, and counts writes by process.
func blockProbe() Probe {
	return Probe{
		Name: "block", Sees: "how long the slowest requests of the disks take",
		Gives: []string{fact.DiskP99, fact.DiskBy},
		Open: func(ctx context.Context, h Host, now time.Time) (Series, error) {
			if major, minor := release(h); major < 5 || major == 5 && minor < 11 {
				return nil, errors.New("it needs Linux 5.11")
			}
			requests := timed(tracepoint.BlockLatency, blockFacts)
			writes := tallied(func(Host) (*tracepoint.Tally, error) { return tracepoint.CountWrites() }, writeFacts)
			return opened(requests, writes)(ctx, h, now)
		},
	}
}

func blockFacts(_ Host, before, after tracepoint.Histogram, _ time.Duration) ([]fact.Fact, error) {
	h := after.Since(before)
	if h.Count() == 0 {
		return nil, nil
	}
	return []fact.Fact{host(fact.DiskP99, ms(h.Quantile(0.99)), fact.Millis)}, nil
}

// writeFacts returns the writes of each process, without kernel paths.
func writeFacts(h Host, places []tracepoint.Place, over time.Duration) ([]fact.Fact, error) {
	return byPlace(newResolver(h, nil), places, fact.DiskBy, over), nil
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

func traceError(err error) error {
	switch {
	case errors.Is(err, tracepoint.ErrHidden):
		return holdfast.WithHint(err, "run it as root, with kernel.kptr_restrict at 0 or 1")
	case errors.Is(err, fs.ErrPermission):
		return holdfast.WithHint(fmt.Errorf("BPF is not allowed: %w", err), "run it as root, outside of containers")
	}
	return err
}

// release returns the kernel's version, 0.0 if it is unknown.
func release(h Host) (major, minor int) {
	text, _ := read(string(h.Proc) + "/sys/kernel/osrelease")
	_, _ = fmt.Sscanf(text, "%d.%d", &major, &minor)
	return major, minor
}

// resolver turns the ids of a place into a subject.
type resolver struct {
	h       Host
	symbols *tracepoint.Symbols // nil: no kernel paths
	groups  map[uint64]string   // path by inode in the unified hierarchy, nil until it is needed
	point   string              // mount point of that hierarchy
	own     bool                // the kernel's pids are those of this procfs
	users   int                 // number of programs whose functions may still be named
}

func newResolver(h Host, symbols *tracepoint.Symbols) *resolver {
	return &resolver{h: h, symbols: symbols, own: ownPids(h.Proc), users: namedPrograms}
}

// group returns the path of a group of the unified hierarchy.
func (r *resolver) group(inode uint64) (string, bool) {
	if r.groups == nil { // the listing takes a while and is not needed without a hit
		r.groups = make(map[uint64]string)
		for _, m := range r.h.Groups {
			if m.V2 {
				r.point, r.groups = m.Point, inodes(m)
			}
		}
	}
	p, ok := r.groups[inode]
	return p, ok
}

// inodes returns the groups of a hierarchy by inode, which is the kernel's id of a group.
func inodes(m cgroup.Mount) map[uint64]string {
	groups := make(map[uint64]string)
	_ = walkGroups(m.Point, func(dir string, _ fs.DirEntry) error { // an unreadable hierarchy has no groups
		if len(groups) < maxDirs {
			if ino, ok := inode(dir); ok {
				groups[ino] = path.Join("/", strings.TrimPrefix(dir, m.Point))
			}
		}
		return nil
	})
	return groups
}

func (r *resolver) subject(p tracepoint.Place) fact.Subject {
	s := fact.Subject{Command: p.Command}
	if g, ok := r.group(p.Cgroup); ok {
		s.Cgroup = fact.UnitGroup(g)
	}
	if r.own {
		s.Pid = p.Pid
		if s.Cgroup == "" || s.Cgroup == "/" {
			if g, ok := groupOf(r.h, p.Pid); ok {
				s.Cgroup = g
			}
		}
	} else if s.Cgroup != "" && s.Cgroup != "/" {
		s.Pid = r.pidOf(s.Cgroup, p.Command)
	}
	if r.symbols != nil {
		s.Kernel = r.symbols.Path(p.Stack)
		s.User = r.user(p, s.Pid)
	}
	return s
}

// pidOf returns the process of a command in a group. It is used if the kernel's pids are
// not those of this procfs. It returns 0 if there is no such process or more than one.
func (r *resolver) pidOf(group, command string) int {
	pids, err := cgroup.Group{Point: r.point, Path: group, V2: true}.Procs()
	if err != nil {
		return 0
	}
	found := 0
	for _, pid := range pids {
		if comm, err := read(string(r.h.Proc) + "/" + strconv.Itoa(pid) + "/comm"); err == nil && strings.TrimSpace(comm) == command {
			if found != 0 {
				return 0
			}
			found = pid
		}
	}
	return found
}

// rateOf returns the total count per second.
func rateOf(places []tracepoint.Place, over time.Duration) float64 {
	n := uint64(0)
	for _, p := range places {
		n += p.Count
	}
	return float64(n) / over.Seconds()
}

// byPlace returns the rates of the processes and paths with the highest counts.
func byPlace(r *resolver, places []tracepoint.Place, name string, over time.Duration) []fact.Fact {
	sort.Slice(places, func(i, j int) bool { return places[j].Count < places[i].Count })
	var by []fact.Fact
	for _, p := range places[:min(len(places), shownPlaces)] {
		by = append(by, fact.Fact{Name: name, Value: float64(p.Count) / over.Seconds(), Unit: fact.PerSecond, Subject: r.subject(p)})
	}
	return by
}

// lockFacts returns the share of time spent waiting for rtnl and for other locks. Other
// locks have a number instead of their address, which must not be disclosed.
func lockFacts(r *resolver, places []tracepoint.Place, over time.Duration) []fact.Fact {
	rtnl := rtnlMutex(r.symbols, places)
	sort.Slice(places, func(i, j int) bool { return places[j].Waited < places[i].Waited })
	locks := make(map[uint64]string)
	all := 0.0
	fs := []fact.Fact{host(fact.LockSeen, 1, fact.Count)}
	for i, p := range places {
		v := float64(p.Waited) / float64(over)
		name, ok := locks[p.Object]
		switch {
		case p.Object == rtnl && rtnl != 0, changesInterfaces(r.symbols.Path(p.Stack)):
			name = "rtnl_mutex"
			all += v
		case !ok:
			name = fmt.Sprintf("lock %d", len(locks)+1)
			locks[p.Object] = name
		}
		if i < 2*shownPlaces {
			s := r.subject(p)
			s.Device = name
			fs = append(fs, fact.Fact{Name: fact.LockWait, Value: v, Unit: fact.Share, Subject: s})
		}
	}
	return append(fs, host(fact.RtnlWait, all, fact.Share))
}

// changesInterfaces reports whether rtnl was taken on a path. Waits on the same path
// after that (rcu_barrier in netdev_run_todo, for example) are part of the same change
// and delay the same processes.
func changesInterfaces(path []string) bool {
	return slices.ContainsFunc(path, func(f string) bool {
		return strings.HasPrefix(f, "rtnl_") || f == "rtnetlink_rcv_msg" || f == "netdev_run_todo"
	})
}

// rtnlMutex returns the address of rtnl_mutex. It uses the name, or if the kernel does
// not export the names of variables (CONFIG_KALLSYMS_ALL), the functions that take no
// other lock. It returns 0 if there was no wait for it.
func rtnlMutex(symbols *tracepoint.Symbols, places []tracepoint.Place) uint64 {
	if a, ok := symbols.Addr("rtnl_mutex"); ok {
		return a
	}
	takers := []string{"rtnl_lock", "rtnetlink_rcv_msg", "rtnl_newlink", "rtnl_dellink", "rtnl_setlink", "rtnl_dumpit", "inet_rtm_newaddr", "linkwatch_event"}
	for _, p := range places {
		for _, f := range symbols.Path(p.Stack) {
			if !strings.Contains(f, "mutex") {
				if slices.Contains(takers, f) {
					return p.Object
				}
				break
			}
		}
	}
	return 0
}

func inode(file string) (uint64, bool) {
	fi, err := os.Stat(file)
	if err != nil {
		return 0, false
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return st.Ino, true
}
