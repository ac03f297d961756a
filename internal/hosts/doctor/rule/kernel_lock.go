package rule

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"holdfast/internal/hosts/doctor/fact"
)

const (
	rtnlShare  = 1.00 // share of the examination: the waits of all processes, summed
	lockShare  = 0.10
	lockSparse = 0.02 // share of the examination: a group that waits less is not a victim
)

// kernelLock finds one kernel lock that several processes wait for: rtnl, which every
// change of a network interface takes, or another lock that containers share.
func kernelLock() Rule {
	return Rule{
		Name:      "kernel-lock",
		Signal:    "time between contention_begin and contention_end of sleeping locks, by lock, process, control group and kernel path",
		Threshold: "waits for rtnl, and on its path, sum to over 100 % of the time: at least one process waits at any moment; waits for another lock sum to over 10 %, and at least two groups wait for it",
		Why:       "a container that starts or ends takes rtnl several times. Waits reached 75 % while engines started and stopped, and 11.5 s in 5 s when rtnl was the cause. A lock that only one group waits for is that group's own (mmap_lock, for example) and slows down no other group",
		Source:    "Documentation of the tracepoints in include/trace/events/lock.h; measured (docs/doctor.md). The thresholds are judgements",
		Needs:     []string{fact.LockSeen},
		Judge: func(s *fact.Set) []Finding {
			var found []Finding
			locks := make(map[string][]fact.Fact)
			for _, w := range s.Of(fact.LockWait) {
				locks[w.Subject.Device] = append(locks[w.Subject.Device], w)
			}
			if rtnl, _ := s.Host(fact.RtnlWait); rtnl > rtnlShare {
				culprit, victims, share := waiters(locks["rtnl_mutex"])
				found = append(found, Finding{
					Severity: Warning,
					Title:    "contention for the kernel's lock of network interfaces (rtnl)",
					Evidence: []Evidence{
						{"waits for rtnl and on its path, sum, share of the time", percent(rtnl), "a few %"},
						{"of these by the process named, which waits most", percent(share), "-"},
					},
					Culprit: culprit,
					Victims: victims,
					Cures: []Cure{
						{What: "Reduce the rate at which interfaces are created, removed or listed: by container network plugins, or by monitoring that dumps links."},
						{What: "Count netlink messages by process.", Command: "bpftrace -e 'kprobe:rtnetlink_rcv_msg { @[comm, pid] = count(); } interval:s:5 { exit(); }'"},
					},
				})
			}
			delete(locks, "rtnl_mutex")
			for _, lock := range slices.Sorted(maps.Keys(locks)) {
				sum, waiting := groupWaits(locks[lock])
				if sum <= lockShare || waiting < 2 {
					continue
				}
				culprit, victims, _ := waiters(locks[lock])
				found = append(found, Finding{
					Severity: Warning,
					Title:    "containers wait for the same kernel lock: " + lockPath(culprit.Kernel),
					Evidence: []Evidence{
						{"waits for the lock, sum, share of the time", percent(sum), "under 1 %"},
						{"groups that wait", fmt.Sprint(waiting), "0"},
					},
					Culprit: culprit,
					Victims: victims,
					Cures:   []Cure{{What: "The kernel path shows the call. Reduce its rate in the process that makes it most."}},
				})
			}
			return found
		},
	}
}

// groupWaits returns the sum of the waits of control groups for a lock, and the number of
// groups that wait for it.
func groupWaits(waits []fact.Fact) (sum float64, waiting int) {
	groups := make(map[string]float64)
	for _, w := range waits {
		if w.Subject.Cgroup != "" && w.Subject.Cgroup != "/" { // there, mostly kernel threads wait
			groups[w.Subject.Cgroup] += w.Value
			sum += w.Value
		}
	}
	for _, v := range groups {
		if v > lockSparse {
			waiting++
		}
	}
	return sum, waiting
}

// waiters returns the process that waits most for a lock, the other waiting groups, and
// the share of the time that the process waits. The process that requests a lock most
// often both holds it and waits for it most. But if a process reads the memory map of another
// one, it is the cause of waits for that map's lock.
func waiters(waits []fact.Fact) (most fact.Subject, others []fact.Subject, share float64) {
	most, share = worst(waits)
	if i := slices.IndexFunc(waits, readsMap); i >= 0 {
		most, share = waits[i].Subject, waits[i].Value
	}
	seen := map[string]bool{most.Cgroup: true}
	for _, w := range waits {
		if !seen[w.Subject.Cgroup] && len(others) < shownVictims {
			seen[w.Subject.Cgroup] = true
			others = append(others, fact.Subject{Cgroup: w.Subject.Cgroup, Pid: w.Subject.Pid, Command: w.Subject.Command})
		}
	}
	return most, others, share
}

// readsMap reports whether a process waits for the lock of a memory map because it reads maps or
// memory by procfs (fs/proc/task_mmu.c and base.c, and access_remote_vm in mm/memory.c).
func readsMap(wait fact.Fact) bool {
	return slices.ContainsFunc(wait.Subject.Kernel, func(f string) bool {
		return slices.Contains([]string{"m_start", "show_smaps_rollup", "pagemap_read", "clear_refs_write", "access_remote_vm", "__access_remote_vm", "process_vm_rw_core"}, f)
	})
}

// lockPath returns the first function that is not part of the lock's implementation.
func lockPath(path []string) string {
	for _, f := range path {
		if !strings.Contains(f, "mutex") && !strings.Contains(f, "rwsem") && !strings.Contains(f, "down_") && !strings.Contains(f, "schedule") {
			return f
		}
	}
	return "unknown"
}
