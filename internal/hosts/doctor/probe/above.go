package probe

import (
	"path"

	"holdfast/internal/hosts/doctor/fact"
)

// aboveReading has the counters of each group above containers that has a CPU limit, such as a
// slice or a pod, and the number of containers below it.
type aboveReading struct {
	counters   map[string]sample
	containers map[string]int
}

// readAbove reads the groups above containers in the hierarchy of CPU limits. On a hybrid host that
// is cgroup v1 (sched-bwc.rst).
func readAbove(h Host, groups map[string]sample) aboveReading {
	a := aboveReading{make(map[string]sample), make(map[string]int)}
	for p := range groups {
		if fact.ContainerID(p) == "" {
			continue
		}
		for p = path.Dir(p); p != "/" && p != "."; p = path.Dir(p) {
			a.containers[p]++
		}
	}
	for _, m := range h.Groups {
		if !m.V2 && !m.Group("/").Has("cpu") {
			continue
		}
		for p := range a.containers {
			s := make(sample)
			s.pick(read, m.Point+p+"/cpu.stat", map[string]string{"nr_periods": "periods", "nr_throttled": "throttled"})
			if s["periods"] > 0 { // otherwise it has no limit, or is of another hierarchy
				a.counters[p] = s
			}
		}
	}
	return a
}

// aboveFacts tells how often the limits of groups with two or more containers stop these. A pod with
// one has the limit of its container.
func aboveFacts(before, after aboveReading) (fs []fact.Fact) {
	for p, b := range after.counters {
		periods, ok := b.grew(before.counters[p], "periods")
		if !ok || periods == 0 || after.containers[p] < 2 {
			continue
		}
		throttled, _ := b.grew(before.counters[p], "throttled")
		for _, f := range []fact.Fact{
			{Name: fact.AbovePeriods, Value: periods, Unit: fact.Count},
			{Name: fact.AboveThrottled, Value: throttled / periods, Unit: fact.Share},
			{Name: fact.AboveContainers, Value: float64(after.containers[p]), Unit: fact.Count},
		} {
			f.Subject.Device = p
			fs = append(fs, f)
		}
	}
	return fs
}
