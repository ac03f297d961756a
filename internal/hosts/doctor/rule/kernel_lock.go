package rule

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"holdfast/internal/hosts/doctor/fact"
)

const (
	rtnlShare  = 1.00 // of the look, waits of all in sum
	lockShare  = 0.10
	lockSparse = 0.02 // of the look: less is no victim
)

// kernelLock is one lock of the kernel that several wait for: rtnl, which every
// change of a network interface takes, or another that containers share.
func kernelLock() Rule {
	return Rule{
		Name:      "kernel-lock",
		Signal:    "time between contention_begin and contention_end of sleeping locks, by lock, process, control group and kernel path",
		Threshold: "waits for rtnl, and on its path, of over 100 % of the time in sum: always somebody; for another lock over 10 %, if two groups wait for it",
		Why:       "each container that starts or ends needs rtnl several times: 75 % was seen where engines start and stop, 11.5 s of waits in 5 s where rtnl was what was wrong. A lock that only one group waits for is its own (mmap_lock, for one) and hurts nobody else",
		Source:    "Documentation of the tracepoints in include/trace/events/lock.h; measured (docs/doctor.md). The thresholds are judgements",
		Needs:     []string{fact.LockSeen},
		Judge: func(s *fact.Set) []Finding {
			var found []Finding
			waits := s.Of(fact.LockWait)
			if rtnl, _ := s.Host(fact.RtnlWait); rtnl > rtnlShare {
				culprit, victims, share := waiters(waits, "rtnl_mutex")
				found = append(found, Finding{
					Severity: Warning,
					Title:    "the kernel's one lock for network interfaces (rtnl) is fought over",
					Evidence: []Evidence{
						{"waits for rtnl and on its path, of the time, in sum", percent(rtnl), "a few %"},
						{"of these by the process named, which asks most", percent(share), "-"},
					},
					Culprit: culprit,
					Victims: victims,
					Cures: []Cure{
						{What: "Slow down what makes, removes or lists interfaces: plugins of the container network, monitoring that dumps links."},
						{What: "See who talks netlink.", Command: "bpftrace -e 'kprobe:rtnetlink_rcv_msg { @[comm, pid] = count(); } interval:s:5 { exit(); }'"},
					},
				})
			}
			sums := make(map[string]float64)
			groups := make(map[string]map[string]float64)
			for _, w := range waits {
				lock := w.Subject.Device
				if lock == "rtnl_mutex" || w.Subject.Cgroup == "" || w.Subject.Cgroup == "/" { // threads of the kernel, for the most part
					continue
				}
				sums[lock] += w.Value
				if groups[lock] == nil {
					groups[lock] = make(map[string]float64)
				}
				groups[lock][w.Subject.Cgroup] += w.Value
			}
			for _, lock := range slices.Sorted(maps.Keys(sums)) {
				sum, hurt := sums[lock], 0
				for _, v := range groups[lock] {
					if v > lockSparse {
						hurt++
					}
				}
				if sum <= lockShare || hurt < 2 {
					continue
				}
				culprit, victims, _ := waiters(waits, lock)
				found = append(found, Finding{
					Severity: Warning,
					Title:    "containers wait for one lock in the kernel: " + lockPath(culprit.Kernel),
					Evidence: []Evidence{
						{"waits for it, of the time, in sum", percent(sum), "under 1 %"},
						{"groups that wait", fmt.Sprint(hurt), "0"},
					},
					Culprit: culprit,
					Victims: victims,
					Cures:   []Cure{{What: "The kernel path says which call it is; slow down who makes it most."}},
				})
			}
			return found
		},
	}
}

// waiters are who waits most for a lock, and the other groups. Who asks most for a
// lock both holds it and waits for it most.
func waiters(waits []fact.Fact, lock string) (most fact.Subject, others []fact.Subject, share float64) {
	var of []fact.Fact
	for _, w := range waits {
		if w.Subject.Device == lock {
			of = append(of, w)
		}
	}
	most, share = worst(of)
	seen := map[string]bool{most.Cgroup: true}
	for _, w := range of {
		if !seen[w.Subject.Cgroup] && len(others) < shownVictims {
			seen[w.Subject.Cgroup] = true
			others = append(others, fact.Subject{Cgroup: w.Subject.Cgroup, Pid: w.Subject.Pid, Command: w.Subject.Command})
		}
	}
	return most, others, share
}

// lockPath is the first function that is not the lock's own.
func lockPath(path []string) string {
	for _, f := range path {
		if !strings.Contains(f, "mutex") && !strings.Contains(f, "rwsem") && !strings.Contains(f, "down_") && !strings.Contains(f, "schedule") {
			return f
		}
	}
	return "unknown"
}
