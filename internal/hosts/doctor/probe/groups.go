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
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/cgroup"
)

// groupsProbe reads the counters of each control group that can be a culprit: a
// container, or a group with processes of its own.
func groupsProbe() Probe {
	return Probe{
		Name: "groups", Sees: "throttling, CPU, memory limits, kernel memory, pids and writes of each container",
		Gives: []string{fact.GroupsSeen, fact.GroupCPU, fact.GroupsCPU, fact.GroupSystem, fact.GroupPeriods, fact.GroupThrottled, fact.GroupLimitHits, fact.GroupRefaults, fact.GroupMemoryFull, fact.GroupIOFull, fact.GroupWrites, fact.GroupLimit, fact.GroupUsage, fact.GroupKernelMem, fact.GroupPids},
		Start: func(_ context.Context, h Host) (Finish, error) {
			before, err := readGroups(h)
			if err != nil && len(before) == 0 {
				return nil, err
			}
			top, known := topCPU(h)
			return func(_ context.Context, over time.Duration) ([]fact.Fact, error) {
				after, err := readGroups(h)
				fs := groupFacts(before, after, over)
				if now, ok := topCPU(h); ok && known {
					fs = append(fs, host(fact.GroupsCPU, grown(top, now)/over.Seconds(), fact.Share))
				}
				return fs, err
			}, nil
		},
	}
}

// sample holds the values of a group's files by a key of this package. A value that
// cannot be read is absent.
type sample map[string]float64

// maxGroups bounds how many groups are read in each hierarchy.
const maxGroups = 5000

// readGroups reads all groups by their path. A container's path is the same in every
// hierarchy.
func readGroups(h Host) (map[string]sample, error) {
	groups := make(map[string]sample)
	if len(h.Groups) == 0 {
		return nil, errors.New("no hierarchy of control groups is mounted")
	}
	for _, m := range h.Groups {
		if !m.V2 && !slices.ContainsFunc(m.Controllers, counts) {
			continue
		}
		n := 0
		err := filepath.WalkDir(m.Point, func(dir string, d fs.DirEntry, err error) error {
			switch {
			case err != nil && dir == m.Point:
				return err
			case err != nil:
				return fs.SkipDir
			case !d.IsDir():
				return nil
			}
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
			if container || isLeaf(d) { // groups below a container count for it
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

// topCPU returns the CPU time of each group directly below a root, in seconds. It
// includes the groups below, also after their removal.
func topCPU(h Host) (map[string]float64, bool) {
	for _, m := range h.Groups {
		v1 := (cgroup.Group{Controllers: m.Controllers}).Has("cpuacct")
		if !v1 && !(m.V2 && hasV2CPU(m)) {
			continue
		}
		entries, err := os.ReadDir(m.Point)
		if err != nil {
			return nil, false
		}
		used := make(map[string]float64)
		unknown := 0
		for _, e := range entries {
			if !e.IsDir() {
				continue
			}
			unknown++
			s := make(sample)
			if v1 {
				s.single("ns", m.Point+"/"+e.Name()+"/cpuacct.usage")
			} else {
				s.pick(m.Point+"/"+e.Name()+"/cpu.stat", map[string]string{"usage_usec": "us"})
			}
			if len(s) > 0 { // otherwise it has just been removed
				used[e.Name()] = s["ns"]/1e9 + s["us"]/1e6
				unknown--
			}
		}
		return used, unknown == 0 || len(used) > 0
	}
	return nil, false
}

// hasV2CPU reports whether a v2 hierarchy counts CPU time and no v1 hierarchy does.
func hasV2CPU(m cgroup.Mount) bool {
	text, err := read(m.Point + "/cgroup.controllers")
	return err == nil && hasWord(text, "cpu")
}

// grown returns the sum of the growth of all counters. A counter that is new counts in
// full.
func grown(before, after map[string]float64) float64 {
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
	run := 0
	for i := 0; i <= len(name); i++ {
		if i < len(name) && (name[i] >= '0' && name[i] <= '9' || name[i] >= 'a' && name[i] <= 'f') {
			run++
			continue
		}
		if run == 64 {
			return name[i-64 : i]
		}
		run = 0
	}
	return ""
}

// ContainerID returns the id of the container that a group belongs to, "" for other
// groups.
func ContainerID(group string) string { return containerID(path.Base(Unit(group))) }

// single reads a file with one number; "max" is absent.
func (s sample) single(key, file string) {
	if text, err := read(file); err == nil {
		if v, err := strconv.ParseFloat(strings.TrimSpace(text), 64); err == nil {
			s[key] = v
		}
	}
}

// pick reads some of a file's named numbers.
func (s sample) pick(file string, keys map[string]string) {
	if text, err := read(file); err == nil {
		n := numbers(text)
		for from, to := range keys {
			if v, ok := n[from]; ok {
				s[to] += v
			}
		}
	}
}

// stall reads a group's share of pressure.
func (s sample) stall(key, file string) {
	if text, err := read(file); err == nil {
		if v, ok := pressure(text)["full"]; ok {
			s[key] = v
		}
	}
}

// read adds the values of a group's directory in one hierarchy.
func (s sample) read(dir string, m cgroup.Mount) {
	g := cgroup.Group{Controllers: m.Controllers}
	throttling := map[string]string{"nr_periods": "periods", "nr_throttled": "throttled"}
	switch {
	case m.V2:
		s.stall("memory full", dir+"/memory.pressure")
		s.stall("io full", dir+"/io.pressure")
		// On a hybrid host the same groups have the controllers' files on v1.
		s.pickOnce(dir+"/cpu.stat", map[string]string{"usage_usec": "cpu us", "system_usec": "system us"})
		s.pickOnce(dir+"/cpu.stat", throttling)
		s.pickOnce(dir+"/memory.events", map[string]string{"max": "limit hits"})
		s.pickOnce(dir+"/memory.stat", map[string]string{"workingset_refault_file": "refaults", "workingset_refault_anon": "refaults", "workingset_refault": "refaults", "slab": "kernel memory"})
		s.single("usage", dir+"/memory.current")
		s.single("limit", dir+"/memory.max")
		s.single("pids", dir+"/pids.current")
		s.single("pids max", dir+"/pids.max")
		s.ioStat(dir + "/io.stat")
	case g.Has("cpu"):
		s.pick(dir+"/cpu.stat", throttling)
	case g.Has("memory"):
		s.single("limit hits", dir+"/memory.failcnt")
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

// pickOnce is pick for keys that another hierarchy has not provided yet.
func (s sample) pickOnce(file string, keys map[string]string) {
	missing := make(map[string]string)
	for from, to := range keys {
		if _, ok := s[to]; !ok {
			missing[from] = to
		}
	}
	s.pick(file, missing)
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

// userHz is the unit of cpuacct.stat, ticks per second for user space, time(7).
const userHz = 100

func groupFacts(before, after map[string]sample, over time.Duration) []fact.Fact {
	fs := []fact.Fact{host(fact.GroupsSeen, float64(len(after)), fact.Count)}
	for p, b := range after {
		a, ok := before[p]
		if !ok { // a new group: its rates are unknown
			a = b
		}
		add := func(name string, v float64, u fact.Unit) {
			fs = append(fs, fact.Fact{Name: name, Value: v, Unit: u, Subject: fact.Subject{Cgroup: p}})
		}
		grew := func(key, name string, scale float64, u fact.Unit) float64 {
			x, ok1 := a[key]
			y, ok2 := b[key]
			v, ok3 := rate(x, y, over)
			if !ok1 || !ok2 || !ok3 {
				return 0
			}
			if name != "" {
				add(name, v*scale, u)
			}
			return v * scale
		}
		if ok {
			cpu := 0.0
			system := grew("system us", "", 1e-6, "")
			if _, v1 := b["cpu ns"]; v1 {
				cpu = grew("cpu ns", fact.GroupCPU, 1e-9, fact.Share)
			} else {
				cpu = grew("cpu us", fact.GroupCPU, 1e-6, fact.Share)
			}
			if _, v2 := b["system us"]; !v2 {
				system = grew("system ticks", "", 1.0/userHz, "")
			}
			if cpu > 0.01 { // below this the share is not significant
				add(fact.GroupSystem, min(1, system/cpu), fact.Share)
			}
			if periods := grew("periods", "", over.Seconds(), ""); periods > 0 {
				add(fact.GroupPeriods, periods, fact.Count)
				add(fact.GroupThrottled, grew("throttled", "", over.Seconds(), "")/periods, fact.Share)
			}
			grew("limit hits", fact.GroupLimitHits, 1, fact.PerSecond)
			grew("refaults", fact.GroupRefaults, 1, fact.PerSecond)
			grew("memory full", fact.GroupMemoryFull, 1, fact.Share)
			grew("io full", fact.GroupIOFull, 1, fact.Share)
			grew("writes", fact.GroupWrites, 1, fact.PerSecond)
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
	return fs
}
