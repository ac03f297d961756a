package rule

import (
	"fmt"
	"slices"
	"strings"

	"holdfast/internal/hosts/doctor/fact"
)

const (
	// manyDrains is in work items a second: one drain queues one on each CPU that
	// has something to drain.
	manyDrains = 500
	// someDrains is from how many on it counts that callers wait for each other: on
	// busy CPUs a drain takes so long that there cannot be many.
	someDrains = 10
	drainWait  = 0.10 // of the look, in sum
)

// fadviseStorm is a program that empties all CPUs' LRU batches again and again, as
// posix_fadvise(DONTNEED) does.
func fadviseStorm() Rule {
	return Rule{
		Name:      "fadvise-storm",
		Signal:    "work queued for lru_add_drain_per_cpu (tracepoint workqueue_queue_work), by process, control group and kernel path",
		Threshold: "over 500/s, or over 10/s where callers wait for each other's drains for over 10 % of the time; a quiet host has 3/s, a storm of 8 loggers had 7,000",
		Why:       "each drain waits for every CPU, under one mutex: 0.5 ms a call with 2 CPUs, 27 ms with 16; all that use the mutex wait. On busy CPUs, which have to do the draining, each takes longer and there are few: 46/s, with 36 % of waits, where four loggers shared 2 CPUs with 25 other threads",
		Source:    "measured (docs/doctor.md); mm/swap.c; glog#145, MESOS-920, ThoughtSpot's hosts with 72 CPUs. The threshold is a judgement",
		Needs:     []string{fact.Drains},
		Judge: func(s *fact.Set) []Finding {
			all, _ := s.Host(fact.Drains)
			waited := drainWaits(s)
			if all < manyDrains && (all < someDrains || waited < drainWait) {
				return nil
			}
			// One path may be reached by several threads: who drains most is
			// summed by process.
			culprit, rate := worst(s.Of(fact.DrainsBy))
			f := Finding{
				Severity: Warning,
				Title:    "something empties the page caches' batches of all CPUs, again and again",
				Evidence: []Evidence{{"drains of a CPU's LRU batches, all of the host", perSecond(all), "under 10/s"}},
				Culprit:  culprit,
			}
			if rate > 0 {
				f.Evidence = append(f.Evidence, Evidence{"of these by the process named", perSecond(rate), "0/s"})
			}
			if waited > 0 {
				f.Evidence = append(f.Evidence, Evidence{"callers wait for each other, of the time, in sum", percent(waited), "0 %"})
			}
			if call := firstWith(culprit.Kernel, "fadvise"); call != "" {
				f.Title = fmt.Sprintf("posix_fadvise storm by %s: every call waits for every CPU", orUnknown(culprit.Command))
				f.Evidence = append(f.Evidence, Evidence{"call", "posix_fadvise, in the kernel " + call, "-"})
				f.Cures = []Cure{
					{What: "If it logs by glog: switch it off there. Newer glog has it off.", Command: "GLOG_drop_log_memory=false"},
					{What: "Without touching the program: give its container a seccomp profile in which fadvise64 returns success and does nothing, and start it anew. --template gives it to a template of ours.", Command: "holdfast doctor cure fadvise --container CONTAINER --apply"},
				}
			} else {
				f.Cures = []Cure{{What: "The kernel path above says which call it is; slow down what makes it."}}
			}
			if all > 10*manyDrains {
				f.Severity = Critical
			}
			return []Finding{f}
		},
	}
}

// drainWaits is the time that callers waited for the mutex of drains.
func drainWaits(s *fact.Set) float64 {
	sum := 0.0
	for _, w := range s.Of(fact.LockWait) {
		if firstWith(w.Subject.Kernel, "lru_add_drain_all") != "" {
			sum += w.Value
		}
	}
	return sum
}

// worst sums facts by process and returns the largest with its busiest kernel
// path.
func worst(fs []fact.Fact) (fact.Subject, float64) {
	type who struct {
		cgroup, command string
		pid             int
	}
	sums := make(map[who]float64)
	var best fact.Subject
	most := 0.0
	for _, f := range fs {
		w := who{f.Subject.Cgroup, f.Subject.Command, f.Subject.Pid}
		sums[w] += f.Value
		most = max(most, sums[w])
	}
	for _, f := range fs { // the largest first, so this is its busiest path
		if sums[who{f.Subject.Cgroup, f.Subject.Command, f.Subject.Pid}] == most {
			best = f.Subject
			break
		}
	}
	return best, most
}

// firstWith is the innermost function whose name has the word.
func firstWith(path []string, word string) string {
	i := slices.IndexFunc(path, func(f string) bool { return strings.HasPrefix(f, "ksys_") && strings.Contains(f, word) })
	if i < 0 {
		i = slices.IndexFunc(path, func(f string) bool { return strings.Contains(f, word) })
	}
	if i < 0 {
		return ""
	}
	return path[i]
}
