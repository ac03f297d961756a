package probe

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"

	"holdfast/internal/hosts/doctor/fact"
)

// boundFrom is the share of the time for which a thread has to wait for its CPUs to be read.
const boundFrom = 0.2

// boundFacts returns the processes with a thread that waited and may not use every CPU. waited
// has the wait in nanoseconds of the thread of each process that waited most.
func boundFacts(h Host, worst map[int]thread, waited map[int]float64, over float64) []fact.Fact {
	long := maps.Clone(waited)
	maps.DeleteFunc(long, func(_ int, ns float64) bool { return ns < boundFrom*over })
	if len(long) == 0 {
		return nil
	}
	cpus, err := readTicks(h)
	if err != nil {
		return nil // without a list of CPUs no thread is known to be bound
	}
	var bound []fact.Fact
	for pid, ns := range long {
		if to := boundTo(h, worst[pid], cpus); to != "" {
			s := processOf(h, pid)
			s.Device = to
			bound = append(bound, fact.Fact{Name: fact.ProcessBound, Value: min(1, ns/over), Unit: fact.Share, Subject: s})
		}
	}
	return largest(bound, shownProcesses)
}

// boundTo returns the CPUs that a thread may use, "cpu0, cpu2": sched_setaffinity(2), cpuset(7).
// It returns "" if these are all that are online, or unknown. The kernel's list also has CPUs
// that are not online.
func boundTo(h Host, t thread, online map[string]ticks) string {
	status, err := parsed(h, func(fs procfs.FS) (procfs.ProcStatus, error) {
		p, err := fs.Thread(t.pid, t.tid)
		if err != nil {
			return procfs.ProcStatus{}, err
		}
		return p.NewStatus()
	})
	if err != nil {
		return "" // it has ended
	}
	var may []string
	for _, cpu := range status.CpusAllowedList {
		if name := "cpu" + strconv.FormatUint(cpu, 10); online[name] != (ticks{}) {
			may = append(may, name)
		}
	}
	const total = 1 // the sum of all CPUs is in the list, too
	switch n := len(online) - total; {
	case len(may) == 0 || len(may) >= n:
		return ""
	case len(may) > shownCPUs:
		return fmt.Sprintf("%s and %d others", strings.Join(may[:shownCPUs], ", "), len(may)-shownCPUs)
	}
	return strings.Join(slices.Clip(may), ", ")
}

// shownCPUs is how many CPUs are named.
const shownCPUs = 4
