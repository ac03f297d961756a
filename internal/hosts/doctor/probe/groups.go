package probe

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/cgroup"
)

// groupsProbe reads the counters of each control group that can be a culprit: a
// container, or a group with processes of its own.
func groupsProbe() Probe {
	return Probe{
		Name: "groups", Sees: "throttling, CPU, memory limits, kernel memory, pids and writes of each container",
		Gives: []string{fact.GroupsSeen, fact.GroupCPU, fact.GroupsCPU, fact.GroupSystem, fact.GroupPeriods, fact.GroupThrottled, fact.GroupLimitHits, fact.GroupRefaults, fact.GroupMemoryFull, fact.GroupIOFull, fact.GroupWrites, fact.GroupLimit, fact.GroupUsage, fact.GroupKernelMem, fact.GroupPids, fact.GroupOOMKills},
		Open:  counted(readGroups, groupFacts),
	}
}

// groupsReading holds the values of the groups.
type groupsReading struct {
	groups map[string]sample // by path
	top    sample            // CPU time of the groups directly below the root, nil if unknown
	err    error             // why some groups are left out
}

func readGroups(_ context.Context, h Host) (groupsReading, error) {
	groups, err := readSamples(h)
	if len(groups) == 0 && err != nil {
		return groupsReading{}, err
	}
	return groupsReading{groups, topCPU(h), err}, nil
}

// sample holds the values of a group's files by a key of this package. A value that
// cannot be read is absent.
type sample map[string]float64

// maxGroups bounds how many groups are read in each hierarchy.
const maxGroups = 5000

// readSamples reads all groups by their path. A container's path is the same in every
// hierarchy.
func readSamples(h Host) (map[string]sample, error) {
	groups := make(map[string]sample)
	if len(h.Groups) == 0 {
		return nil, errors.New("no hierarchy of control groups is mounted")
	}
	for _, m := range h.Groups {
		if !m.V2 && !slices.ContainsFunc(m.Controllers, counts) {
			continue
		}
		n := 0
		err := walkGroups(m.Point, func(dir string, d fs.DirEntry) error {
			p := path.Join("/", strings.TrimPrefix(dir, m.Point))
			container := Unit(p) == p && containerID(path.Base(p)) != ""
			if p != "/" && (container || hasProcesses(dir)) {
				if n++; n > maxGroups {
					return fmt.Errorf("there are more than %d control groups with processes; the others are left out", maxGroups)
				}
				s := groups[p]
				if s == nil {
					s = make(sample)
					groups[p] = s
				}
				s.read(dir, m)
			}
			if container { // groups below a container count for it
				return fs.SkipDir
			}
			return nil
		})
		if err != nil {
			return groups, fmt.Errorf("read the control groups below %s: %w", m.Point, err)
		}
	}
	return groups, nil
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

// walkContainers calls do with the path and the directory of each container's group in a
// hierarchy, at most maxGroups.
func walkContainers(m cgroup.Mount, do func(p, dir string)) error {
	n := 0
	return walkGroups(m.Point, func(dir string, _ fs.DirEntry) error {
		p := path.Join("/", strings.TrimPrefix(dir, m.Point))
		if Unit(p) != p || containerID(path.Base(p)) == "" {
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
		s.pick(dir+"/cpu.stat", map[string]string{"usage_usec": "us"})
	} else {
		s.single("ns", dir+"/cpuacct.usage")
	}
	return s["ns"]/1e9 + s["us"]/1e6, len(s) > 0
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

// Unit returns the group that a group's activity is attributed to: the container if the
// group is inside one, or else the group itself.
func Unit(p string) string {
	parts := strings.Split(strings.Trim(p, "/"), "/")
	for i, part := range parts {
		if containerID(part) != "" {
			return "/" + strings.Join(parts[:i+1], "/")
		}
	}
	return p
}

// containerID returns the id in a group's name: the 64 hexadecimal digits by which
// engines name a container's group (docker-<id>.scope, cri-containerd-<id>.scope).
func containerID(name string) string {
	for digits := range strings.FieldsFuncSeq(name, notHexadecimal) {
		if len(digits) == 64 {
			return digits
		}
	}
	return ""
}

func notHexadecimal(r rune) bool { return (r < '0' || r > '9') && (r < 'a' || r > 'f') }

// ContainerID returns the id of the container that a group belongs to, "" for other
// groups.
func ContainerID(group string) string { return containerID(path.Base(Unit(group))) }

// single reads a file with one number; "max" is absent.
func (s sample) single(key, file string) {
	if v, err := number(file); err == nil {
		s[key] = v
	}
}

// pick reads some of a file's named numbers. It leaves out keys that another hierarchy
// has provided: on a hybrid host a group has files in several.
func (s sample) pick(file string, keys map[string]string) {
	text, err := read(file)
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
func (s sample) stall(key, kind, file string) {
	text, _ := read(file) // with an error the value is absent
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

// read adds the values of a group's directory in one hierarchy.
func (s sample) read(dir string, m cgroup.Mount) {
	g := cgroup.Group{Controllers: m.Controllers}
	switch {
	case m.V2:
		s.stall("memory full", "full", dir+"/memory.pressure")
		s.stall("io full", "full", dir+"/io.pressure")
		s.pick(dir+"/cpu.stat", map[string]string{"usage_usec": "cpu us", "system_usec": "system us", "nr_periods": "periods", "nr_throttled": "throttled"})
		s.pick(dir+"/memory.events", map[string]string{"max": "limit hits", "oom_kill": "oom kills"})
		s.pick(dir+"/memory.stat", map[string]string{"workingset_refault_file": "refaults", "workingset_refault_anon": "refaults", "workingset_refault": "refaults", "slab": "kernel memory"})
		s.single("usage", dir+"/memory.current")
		s.single("limit", dir+"/memory.max")
		s.single("pids", dir+"/pids.current")
		s.single("pids max", dir+"/pids.max")
		s.ioStat(dir + "/io.stat")
	case g.Has("cpu"):
		s.pick(dir+"/cpu.stat", map[string]string{"nr_periods": "periods", "nr_throttled": "throttled"})
	case g.Has("memory"):
		s.single("limit hits", dir+"/memory.failcnt")
		s.pick(dir+"/memory.oom_control", map[string]string{"oom_kill": "oom kills"})
		s.single("usage", dir+"/memory.usage_in_bytes")
		s.single("limit", dir+"/memory.limit_in_bytes")
		s.single("kernel memory", dir+"/memory.kmem.usage_in_bytes")
		s.pick(dir+"/memory.stat", map[string]string{"workingset_refault_file": "refaults", "workingset_refault_anon": "refaults", "workingset_refault": "refaults"})
	case g.Has("pids"):
		s.single("pids", dir+"/pids.current")
		s.single("pids max", dir+"/pids.max")
	case g.Has("blkio"):
		s.blkio(dir + "/blkio.throttle.io_serviced")
	}
	if g.Has("cpuacct") { // together with cpu or in a separate hierarchy
		s.single("cpu ns", dir+"/cpuacct.usage")
		s.pick(dir+"/cpuacct.stat", map[string]string{"system": "system ticks"})
	}
}

// ioStat sums the writes to all disks: 254:0 rbytes=1 wbytes=2 rios=3 wios=4 …
func (s sample) ioStat(file string) {
	text, err := read(file)
	if err != nil {
		return
	}
	for f := range strings.FieldsSeq(text) {
		if n, ok := strings.CutPrefix(f, "wios="); ok {
			if v, err := strconv.ParseFloat(n, 64); err == nil {
				s["writes"] += v
			}
		}
	}
}

// blkio sums the writes to all disks: 254:0 Write 17.
func (s sample) blkio(file string) {
	text, err := read(file)
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
		}
	}
	if before.top != nil && after.top != nil {
		fs = append(fs, host(fact.GroupsCPU, grown(before.top, after.top)/over.Seconds(), fact.Share))
	}
	return fs, after.err
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
