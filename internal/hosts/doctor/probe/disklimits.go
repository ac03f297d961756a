package probe

import (
	"context"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/cgroup"
)

// diskLimitsProbe compares the rates at which groups use disks with their limits: io.max and io.stat
// of cgroup-v2.rst, blkio.throttle of cgroup-v1/blkio-controller.rst. It reads containers and the
// groups above them.
func diskLimitsProbe() Probe {
	return Probe{
		Name: "disk limits", Sees: "containers that wait because of a limit on a disk",
		Gives: []string{fact.DiskLimitUsed},
		Open:  counted(readDiskLimits, diskLimitFacts),
	}
}

// diskUse is one kind of use of a disk by a group, as io.max names it: rbps, wbps, riops or wiops.
type diskUse struct{ group, disk, kind string }

// limitedUse is a use with a limit.
type limitedUse struct {
	limit float64 // a second
	done  float64 // since the group was made
}

func readDiskLimits(_ context.Context, h Host) (map[diskUse]limitedUse, error) {
	found := make(map[diskUse]limitedUse)
	for _, m := range h.Groups {
		if !m.V2 && !slices.Contains(m.Controllers, "blkio") {
			continue
		}
		seen := make(map[string]bool)
		_ = walkContainers(m, func(p, _ string) { // a group that cannot be read has no limit
			for ; p != "/" && p != "." && !seen[p]; p = path.Dir(p) {
				seen[p] = true
				readLimitsOfGroup(m, p, found)
			}
		})
	}
	return found, nil
}

func readLimitsOfGroup(m cgroup.Mount, p string, found map[diskUse]limitedUse) {
	limits, done := limitsV1, doneV1
	if m.V2 {
		limits, done = limitsV2, doneV2
	}
	set := limits(m.Point + p)
	if len(set) == 0 {
		return
	}
	used := done(m.Point + p)
	for u, limit := range set {
		done := used[u]
		u.group = p
		found[u] = limitedUse{limit, done}
	}
}

// limitsV2 reads "254:0 rbps=max wbps=1048576 riops=max wiops=10".
func limitsV2(dir string) map[diskUse]float64 {
	text, _ := read(dir + "/io.max") // none without the controller io
	return disksOf(text, map[string]string{"rbps": "rbps", "wbps": "wbps", "riops": "riops", "wiops": "wiops"})
}

// doneV2 reads "254:0 rbytes=1 wbytes=2 rios=3 wios=4 …".
func doneV2(dir string) map[diskUse]float64 {
	text, _ := read(dir + "/io.stat")
	return disksOf(text, map[string]string{"rbytes": "rbps", "wbytes": "wbps", "rios": "riops", "wios": "wiops"})
}

// disksOf reads the named numbers of each disk in the text of a file of v2. "max" is no number.
func disksOf(text string, names map[string]string) map[diskUse]float64 {
	found := make(map[diskUse]float64)
	for line := range strings.Lines(text) {
		disk, rest, _ := strings.Cut(line, " ")
		for field := range strings.FieldsSeq(rest) {
			name, value, _ := strings.Cut(field, "=")
			v, err := strconv.ParseFloat(value, 64)
			if kind, ok := names[name]; ok && err == nil {
				found[diskUse{disk: disk, kind: kind}] = v
			}
		}
	}
	return found
}

// limitsV1 reads "254:0 1048576" in a file for each kind.
func limitsV1(dir string) map[diskUse]float64 {
	found := make(map[diskUse]float64)
	for kind, name := range map[string]string{"rbps": "read_bps", "wbps": "write_bps", "riops": "read_iops", "wiops": "write_iops"} {
		text, _ := read(dir + "/blkio.throttle." + name + "_device") // none in a kernel without limits
		for line := range strings.Lines(text) {
			disk, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			if v, err := strconv.ParseFloat(value, 64); err == nil {
				found[diskUse{disk: disk, kind: kind}] = v
			}
		}
	}
	return found
}

// doneV1 reads "254:0 Write 17" in the file with bytes and in that with requests.
func doneV1(dir string) map[diskUse]float64 {
	found := make(map[diskUse]float64)
	for file, unit := range map[string]string{"io_service_bytes": "bps", "io_serviced": "iops"} {
		text, _ := read(dir + "/blkio.throttle." + file) // none in a kernel without limits
		for line := range strings.Lines(text) {
			f := strings.Fields(line)
			if len(f) != 3 || f[1] != "Read" && f[1] != "Write" {
				continue
			}
			if v, err := strconv.ParseFloat(f[2], 64); err == nil {
				found[diskUse{disk: f[0], kind: strings.ToLower(f[1][:1]) + unit}] = v
			}
		}
	}
	return found
}

// diskLimitFacts returns, for each group, the highest share of its limits.
func diskLimitFacts(_ Host, before, after map[diskUse]limitedUse, over time.Duration) (fs []fact.Fact, err error) {
	shares := make(map[string]float64)
	for u, b := range after {
		if a, ok := before[u]; ok && b.limit > 0 && b.done >= a.done {
			shares[u.group] = max(shares[u.group], (b.done-a.done)/over.Seconds()/b.limit)
		}
	}
	for p, v := range shares {
		s := fact.Subject{Cgroup: p}
		if fact.ContainerID(p) == "" {
			s = fact.Subject{Device: p}
		}
		fs = append(fs, fact.Fact{Name: fact.DiskLimitUsed, Value: v, Unit: fact.Share, Subject: s})
	}
	return fs, nil
}
