package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/kfile"
)

// groupsProbe reads the counters of each control group that can be a culprit: a
// container, or a group with processes of its own.
func groupsProbe() Probe {
	return Probe{
		Name: "groups", Sees: "throttling, CPU, memory limits, kernel memory, pids and writes of each container",
		Gives: []string{fact.GroupsSeen, fact.GroupCPU, fact.GroupsCPU, fact.GroupSystem, fact.GroupPeriods, fact.GroupThrottled, fact.GroupLimitHits, fact.GroupRefaults, fact.GroupMemoryFull, fact.GroupIOFull, fact.GroupWrites, fact.GroupLimit, fact.GroupUsage, fact.GroupKernelMem, fact.GroupPids, fact.GroupPidsGrowth, fact.GroupOOMKills, fact.AbovePeriods, fact.AboveThrottled, fact.AboveContainers},
		Open:  openGroups,
	}
}

// groupsReading holds the values of the groups.
type groupsReading struct {
	groups map[string]sample // by path
	above  aboveReading
	top    sample // CPU time of the groups directly below the root, nil if unknown
	err    error  // why some groups are left out
}

// groupReader reads the groups again and again.
type groupReader struct {
	last map[string]sample // of the reading before
}

func openGroups(ctx context.Context, h Host, now time.Time) (Series, error) {
	r := &groupReader{}
	return counted(r.read, groupFacts)(ctx, h, now)
}

func (r *groupReader) read(_ context.Context, h Host) (groupsReading, error) {
	groups, err := r.samples(h)
	if len(groups) == 0 && err != nil {
		return groupsReading{}, err
	}
	r.last = groups
	return groupsReading{groups, readAbove(h, groups), topCPU(h), err}, nil
}

// sample holds the values of a group's files by a key of this package. A value that
// cannot be read is absent.
type sample map[string]float64

// maxGroups bounds how many groups are read in each hierarchy.
const maxGroups = 5000

// samples reads all groups by their path. A container's path is the same in every
// hierarchy. Of a group that has used no CPU time since the reading before, only what the
// kernel counts for it meanwhile is read again: its other values cannot have changed much,
// and most containers of a host are idle.
func (r *groupReader) samples(h Host) (map[string]sample, error) {
	if len(h.Groups) == 0 {
		return nil, errors.New("no hierarchy of control groups is mounted")
	}
	groups, idle := make(map[string]sample), make(map[string]bool)
	cpu, _ := countsCPU(h) // none has a point if it is unknown
	for _, m := range cpuFirst(h.Groups, cpu) {
		if !m.V2 && !slices.ContainsFunc(m.Controllers, counts) {
			continue
		}
		if m.V2 {
			// On a host with both versions the groups have no files of the controllers of v1.
			text, _ := read(m.Point + "/cgroup.controllers") // with an error there are none
			m.Controllers = strings.Fields(text)
		}
		err := walkUnits(m, func(p, dir string) {
			if before := r.last[p]; m.Point == cpu.Point && before != nil {
				if used, ok := cpuTime(m, dir); ok && used == before.cpu() {
					groups[p], idle[p] = maps.Clone(before), true
				}
			}
			if groups[p] == nil {
				groups[p] = make(sample)
			}
			groups[p].readDir(dir, m, idle[p])
		})
		if err != nil {
			return groups, fmt.Errorf("read the control groups below %s: %w", m.Point, err)
		}
	}
	return groups, nil
}

// cpuFirst returns the hierarchies, with the one that counts CPU time first.
func cpuFirst(all cgroup.Mounts, cpu cgroup.Mount) cgroup.Mounts {
	sorted := slices.Clone(all)
	sort.SliceStable(sorted, func(i, j int) bool { return sorted[i].Point == cpu.Point && sorted[j].Point != cpu.Point })
	return sorted
}

// cpu is the CPU time in seconds, as cpuTime returns it. A group in both versions has both
// figures.
func (s sample) cpu() float64 {
	if ns, ok := s["cpu ns"]; ok {
		return ns / 1e9
	}
	return s["cpu us"] / 1e6
}

// walkGroups calls do with the directory of a group and with those of all groups below
// it. Groups that are removed meanwhile are left out.
func walkGroups(root string, do func(dir string, d fs.DirEntry) error) error {
	return filepath.WalkDir(root, func(dir string, d fs.DirEntry, err error) error {
		switch {
		case err != nil && dir == root:
			return err
		case err != nil:
			return fs.SkipDir
		case !d.IsDir():
			return nil
		}
		if err := do(dir, d); err != nil || !isLeaf(d) {
			return err
		}
		return fs.SkipDir
	})
}

// walkUnits calls do with the path and the directory of each group of a hierarchy that can be a
// culprit: a container, or a group with processes of its own. Groups below a container count for
// it. Beyond maxGroups it returns an error.
func walkUnits(m cgroup.Mount, do func(p, dir string)) error {
	n := 0
	return walkGroups(m.Point, func(dir string, _ fs.DirEntry) error {
		p := path.Join("/", strings.TrimPrefix(dir, m.Point))
		container := fact.UnitGroup(p) == p && fact.ContainerID(p) != ""
		if p != "/" && (container || hasProcesses(dir)) {
			if n++; n > maxGroups {
				return fmt.Errorf("there are more than %d control groups with processes; the others are left out", maxGroups)
			}
			do(p, dir)
		}
		if container {
			return fs.SkipDir
		}
		return nil
	})
}

// walkContainers calls do with the path and the directory of each container's group in a
// hierarchy, at most maxGroups.
func walkContainers(m cgroup.Mount, do func(p, dir string)) error {
	n := 0
	return walkGroups(m.Point, func(dir string, _ fs.DirEntry) error {
		p := path.Join("/", strings.TrimPrefix(dir, m.Point))
		if fact.UnitGroup(p) != p || fact.ContainerID(p) == "" {
			return nil
		}
		if n++; n > maxGroups {
			return fs.SkipAll
		}
		do(p, dir)
		return fs.SkipDir
	})
}

// isLeaf reports whether a group has no groups below it; the names of its files are then
// not read. The kernel counts two links, and one for each group directly below
// (kernfs_refresh_inode, fs/kernfs/inode.c). On a file system that counts otherwise, no
// directory is a leaf.
func isLeaf(d fs.DirEntry) bool {
	info, err := d.Info()
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Nlink == 2
}

// topCPU returns the CPU time of each group directly below a root, in seconds. It
// includes the groups below, also after their removal. It returns nil if the times cannot
// be read.
func topCPU(h Host) sample {
	m, ok := countsCPU(h)
	if !ok {
		return nil
	}
	children, err := m.Group("/").Children()
	if err != nil {
		return nil
	}
	used := make(sample)
	for _, c := range children {
		if v, ok := cpuTime(m, c.Dir()); ok {
			used[c.Path] = v
		}
	}
	if len(used) == 0 && len(children) > 0 {
		return nil
	}
	return used
}

// countsCPU returns the hierarchy that counts the CPU time of groups.
func countsCPU(h Host) (cgroup.Mount, bool) {
	for _, m := range h.Groups {
		if m.Group("/").Has("cpuacct") && !m.V2 || m.V2 && hasV2CPU(m) {
			return m, true
		}
	}
	return cgroup.Mount{}, false
}

// cpuTime returns the CPU time of a group in that hierarchy, by its directory, in seconds. It
// reports false if the group has just been removed.
func cpuTime(m cgroup.Mount, dir string) (float64, bool) {
	s := make(sample)
	if m.V2 {
		s.pick(read, dir+"/cpu.stat", map[string]string{"usage_usec": "cpu us"})
	} else {
		s.single("cpu ns", read, dir+"/cpuacct.usage")
	}
	return s.cpu(), len(s) > 0
}

// hasV2CPU reports whether a v2 hierarchy counts CPU time and no v1 hierarchy does.
func hasV2CPU(m cgroup.Mount) bool {
	text, err := read(m.Point + "/cgroup.controllers")
	return err == nil && slices.Contains(strings.Fields(text), "cpu")
}

// grown returns the sum of the growth of all counters. A counter that is new counts in
// full.
func grown(before, after sample) float64 {
	sum := 0.0
	for name, b := range after {
		sum += max(0, b-before[name])
	}
	return sum
}

// counts reports whether this package reads the files of a v1 controller.
func counts(controller string) bool {
	return slices.Contains([]string{"cpu", "cpuacct", "memory", "pids", "blkio"}, controller)
}

func hasProcesses(dir string) bool {
	f, err := os.Open(dir + "/cgroup.procs")
	if err != nil {
		return false
	}
	defer f.Close()
	var b [1]byte
	n, _ := f.Read(b[:]) // with an error no process is visible
	return n > 0
}

// reader reads a file: read, by its path, or the Read of a kfile.Dir, by its name.
type reader func(file string) (string, error)

// single reads a file with one number; "max" is absent.
func (s sample) single(key string, from reader, file string) {
	text, err := from(file)
	if err != nil {
		return
	}
	if v, err := strconv.ParseFloat(strings.TrimSpace(text), 64); err == nil {
		s[key] = v
	}
}

// pick reads some of a file's named numbers. It leaves out keys that another hierarchy
// has provided: on a hybrid host a group has files in several.
func (s sample) pick(from reader, file string, keys map[string]string) {
	text, err := from(file)
	if err != nil {
		return
	}
	n := numbers(text)
	found := make(sample)
	for from, to := range keys {
		if v, ok := n[from]; ok {
			found[to] += v
		}
	}
	for to, v := range found {
		if _, ok := s[to]; !ok {
			s[to] = v
		}
	}
}

// stall reads one of the total stall times of a pressure file in seconds, "some" or
// "full" (Documentation/accounting/psi.rst):
//
//	full avg10=0.00 avg60=0.00 avg300=0.00 total=123456
func (s sample) stall(key, kind string, from reader, file string) {
	text, _ := from(file) // with an error the value is absent
	for line := range strings.Lines(text) {
		_, total, ok := strings.Cut(line, "total=")
		if v, err := strconv.ParseFloat(strings.TrimSpace(total), 64); ok && err == nil && strings.HasPrefix(line, kind+" ") {
			s[key] = v / 1e6
		}
	}
}

// grew returns the growth of a counter since an earlier sample. It reports false if one
// of the values is unknown or if the counter went backwards.
func (s sample) grew(before sample, key string) (float64, bool) {
	a, ok1 := before[key]
	b, ok2 := s[key]
	return b - a, ok1 && ok2 && b >= a
}

// readDir adds the values of a group's directory in one hierarchy. Of v2, m has the
// controllers of the hierarchy. Of a group that is idle, it reads only stalls and writes:
// others cause them, too, such as a disk that does not answer.
func (s sample) readDir(dir string, m cgroup.Mount, idle bool) {
	if idle && !m.V2 {
		return
	}
	d, err := kfile.OpenDir(dir)
	if err != nil {
		return // it was just removed
	}
	defer d.Close()
	in := func(file string) (string, error) {
		text, err := d.ReadRecord(file, maxFile)
		return string(text), err
	}
	if m.V2 {
		s.readV2(in, m.Controllers, idle)
		return
	}
	g := cgroup.Group{Controllers: m.Controllers}
	switch {
	case g.Has("cpu"):
		s.pick(in, "cpu.stat", map[string]string{"nr_periods": "periods", "nr_throttled": "throttled"})
	case g.Has("memory"):
		s.single("limit hits", in, "memory.failcnt")
		s.pick(in, "memory.oom_control", map[string]string{"oom_kill": "oom kills"})
		s.single("usage", in, "memory.usage_in_bytes")
		s.single("limit", in, "memory.limit_in_bytes")
		s.single("kernel memory", in, "memory.kmem.usage_in_bytes")
		s.pick(in, "memory.stat", map[string]string{"workingset_refault_file": "refaults", "workingset_refault_anon": "refaults", "workingset_refault": "refaults"})
	case g.Has("pids"):
		s.single("pids", in, "pids.current")
		s.single("pids max", in, "pids.max")
	case g.Has("blkio"):
		s.blkio(in, "blkio.throttle.io_serviced")
	}
	if g.Has("cpuacct") { // together with cpu or in a separate hierarchy
		s.single("cpu ns", in, "cpuacct.usage")
		s.pick(in, "cpuacct.stat", map[string]string{"system": "system ticks"})
	}
}

func (s sample) readV2(in reader, controllers []string, idle bool) {
	s.stall("memory full", "full", in, "memory.pressure")
	s.stall("io full", "full", in, "io.pressure")
	if slices.Contains(controllers, "io") {
		s.ioStat(in, "io.stat")
	}
	if idle {
		return
	}
	s.pick(in, "cpu.stat", map[string]string{"usage_usec": "cpu us", "system_usec": "system us", "nr_periods": "periods", "nr_throttled": "throttled"})
	if slices.Contains(controllers, "memory") {
		s.pick(in, "memory.events", map[string]string{"max": "limit hits", "high": "limit hits", "oom_kill": "oom kills"})
		s.pick(in, "memory.stat", map[string]string{"workingset_refault_file": "refaults", "workingset_refault_anon": "refaults", "workingset_refault": "refaults", "slab": "kernel memory"})
		s.single("usage", in, "memory.current")
		s.single("limit", in, "memory.max")
		// Above memory.high the kernel reclaims pages of the group and delays its processes.
		s.single("high", in, "memory.high")
		if high, ok := s["high"]; ok {
			s["limit"] = min(high, cmp.Or(s["limit"], high))
		}
	}
	if slices.Contains(controllers, "pids") {
		s.single("pids", in, "pids.current")
		s.single("pids max", in, "pids.max")
	}
}

// ioStat sums the writes to all disks: 254:0 rbytes=1 wbytes=2 rios=3 wios=4 …
func (s sample) ioStat(from reader, file string) {
	text, err := from(file)
	if err != nil {
		return
	}
	s["writes"] = 0 // also a known value
	for _, v := range disksOf(text, map[string]string{"wios": "wiops"}) {
		s["writes"] += v
	}
}

// blkio sums the writes to all disks: 254:0 Write 17.
func (s sample) blkio(from reader, file string) {
	text, err := from(file)
	if err != nil {
		return
	}
	s["writes"] += 0 // the file exists, so zero writes is a known value
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 3 && f[1] == "Write" {
			if v, err := strconv.ParseFloat(f[2], 64); err == nil {
				s["writes"] += v
			}
		}
	}
}

// grownTasks is the growth of a container's processes and threads from which it is a fact.
const grownTasks = 20

// noLimit is the value from which a v1 limit means no limit: the kernel shows the largest
// possible number of pages.
const noLimit = 1 << 60

func groupFacts(_ Host, before, after groupsReading, over time.Duration) ([]fact.Fact, error) {
	fs := []fact.Fact{host(fact.GroupsSeen, float64(len(after.groups)), fact.Count)}
	for p, b := range after.groups {
		add := func(name string, v float64, u fact.Unit) {
			fs = append(fs, fact.Fact{Name: name, Value: v, Unit: u, Subject: fact.Subject{Cgroup: p}})
		}
		if a, ok := before.groups[p]; ok { // the rates of a new group are unknown
			groupRates(a, b, over, add)
		}
		if v, ok := b["limit"]; ok && v < noLimit {
			add(fact.GroupLimit, v, fact.Bytes)
		}
		if v, ok := b["usage"]; ok {
			add(fact.GroupUsage, v, fact.Bytes)
		}
		if v, ok := b["kernel memory"]; ok {
			add(fact.GroupKernelMem, v, fact.Bytes)
		}
		if limit := b["pids max"]; limit > 0 {
			add(fact.GroupPids, b["pids"]/limit, fact.Share)
			if more, ok := b.grew(before.groups[p], "pids"); ok && more >= grownTasks {
				add(fact.GroupPidsGrowth, more/limit/over.Seconds(), fact.PerSecond)
			}
		}
	}
	if before.top != nil && after.top != nil {
		fs = append(fs, host(fact.GroupsCPU, grown(before.top, after.top)/over.Seconds(), fact.Share))
	}
	return append(fs, aboveFacts(before.above, after.above)...), after.err
}

// groupRates adds the rates of one group.
func groupRates(before, after sample, over time.Duration, add func(name string, v float64, u fact.Unit)) {
	// In seconds. v1 and v2 use other units.
	rate := func(key string, perSecond float64) (float64, bool) {
		v, ok := after.grew(before, key)
		return v / perSecond / over.Seconds(), ok
	}
	cpu, ok := rate("cpu ns", 1e9)
	if !ok {
		cpu, ok = rate("cpu us", 1e6)
	}
	if ok {
		add(fact.GroupCPU, cpu, fact.Share)
	}
	system, ok := rate("system us", 1e6)
	if !ok {
		system, ok = rate("system ticks", tickHz)
	}
	if ok && cpu > 0.01 { // below this the share is not significant
		add(fact.GroupSystem, min(1, system/cpu), fact.Share)
	}
	if periods, ok := after.grew(before, "periods"); ok && periods > 0 {
		throttled, _ := after.grew(before, "throttled")
		add(fact.GroupPeriods, periods, fact.Count)
		add(fact.GroupThrottled, throttled/periods, fact.Share)
	}
	if kills, ok := after.grew(before, "oom kills"); ok && kills > 0 {
		add(fact.GroupOOMKills, kills, fact.Count)
	}
	for _, r := range []struct {
		key, name string
		unit      fact.Unit
	}{
		{"limit hits", fact.GroupLimitHits, fact.PerSecond},
		{"refaults", fact.GroupRefaults, fact.PerSecond},
		{"memory full", fact.GroupMemoryFull, fact.Share},
		{"io full", fact.GroupIOFull, fact.Share},
		{"writes", fact.GroupWrites, fact.PerSecond},
	} {
		if v, ok := rate(r.key, 1); ok {
			add(r.name, v, r.unit)
		}
	}
}
