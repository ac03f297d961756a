package rule

import (
	"cmp"
	"fmt"
	"strings"

	"holdfast/internal/hosts/doctor/fact"
)

const (
	// manyDrains is in work items per second. One drain queues one work item on each CPU
	// that has something to drain.
	manyDrains = 500
	// someDrains is the rate from which waits of the callers for each other count. On
	// busy CPUs a drain takes so long that there cannot be many.
	someDrains = 10
	drainWait  = 0.10 // share of the examination, summed over all callers
)

// fadviseStorm finds a program that repeatedly drains the LRU batches of all CPUs, as
// posix_fadvise(DONTNEED) does.
func fadviseStorm() Rule {
	return Rule{
		Name:      "fadvise-storm",
		Signal:    "work queued for lru_add_drain_per_cpu (tracepoint workqueue_queue_work), by process, control group and kernel path",
		Threshold: "over 500/s, or over 10/s if callers wait for each other's drains for over 10 % of the time; an idle host has 3/s, a storm of 8 loggers had 7,000/s",
		Why:       "each drain waits for every CPU and holds one mutex: 0.5 ms per call with 2 CPUs, 27 ms with 16. All other users of the mutex wait. The CPUs do the draining themselves, so on busy CPUs a drain takes longer and the rate is low. Four loggers that shared 2 CPUs with 25 other threads made 46/s, and waited for 36 % of the time",
		Source:    "measured (docs/doctor.md); mm/swap.c; glog#145, MESOS-920, ThoughtSpot's hosts with 72 CPUs. The threshold is a judgement",
		Needs:     []string{fact.Drains},
		Judge: func(s *fact.Set) []Finding {
			all, _ := s.Host(fact.Drains)
			waited := drainWaits(s)
			if all < manyDrains && (all < someDrains || waited < drainWait) {
				return nil
			}
			// Several threads may reach one path, so drains are summed by process.
			culprit, rate := worst(s.Of(fact.DrainsBy))
			f := Finding{
				Severity: severity(all > 10*manyDrains),
				Title:    "a process repeatedly drains the LRU page batches of all CPUs",
				Evidence: []Evidence{{"drains of a CPU's LRU batches, whole host", perSecond(all), "under 10/s"}},
				Culprit:  culprit,
			}
			if rate > 0 {
				f.Evidence = append(f.Evidence, Evidence{"of these by the process named", perSecond(rate), "0/s"})
			}
			if waited > 0 {
				f.Evidence = append(f.Evidence, Evidence{"callers wait for each other, sum, share of the time", percent(waited), "0 %"})
			}
			if call := firstWith(culprit.Kernel, "fadvise"); call != "" {
				f.Title = fmt.Sprintf("posix_fadvise storm by %s: every call waits for every CPU", cmp.Or(culprit.Command, "unknown"))
				f.Evidence = append(f.Evidence, Evidence{"call", "posix_fadvise, in the kernel " + call, "-"})
				if c := caller(culprit.User); c != "" {
					f.Evidence = append(f.Evidence, Evidence{"called by", c, "-"})
				}
				f.Cures = []Cure{
					{What: "If the program logs with glog, switch these calls off. Newer versions of glog have them off.", Command: "GLOG_drop_log_memory=false"},
					{What: "If the program cannot be changed, restart its container with a seccomp profile in which fadvise64 returns success and does nothing. --template adds the profile to a Holdfast template.", Command: "holdfast doctor cure fadvise --container CONTAINER --apply"},
				}
			} else {
				f.Cures = []Cure{{What: "The kernel path above shows the call. Make the process call it less often."}}
			}
			return []Finding{f}
		},
	}
}

// caller returns the function that made a system call: the innermost one that is not a
// library's name for the call. If only its file is known, it adds the function that called
// it. It returns "" if neither has a name.
func caller(user []string) string {
	unnamed := ""
	for _, f := range user {
		switch {
		case strings.Contains(strings.ToLower(f), "fadvise"), strings.Contains(f, "yscall"), strings.HasPrefix(f, "[libc."):
		case strings.HasPrefix(f, "["):
			unnamed = cmp.Or(unnamed, f)
		case unnamed != "":
			return unnamed + ", called by " + f
		default:
			return f
		}
	}
	return unnamed
}

// drainWaits returns the time for which callers waited for the mutex of drains.
func drainWaits(s *fact.Set) float64 {
	sum := 0.0
	for _, w := range s.Of(fact.LockWait) {
		if firstWith(w.Subject.Kernel, "lru_add_drain_all") != "" {
			sum += w.Value
		}
	}
	return sum
}

// worst sums facts by process and returns the process with the largest sum, with its
// busiest kernel path, and that sum.
func worst(fs []fact.Fact) (fact.Subject, float64) {
	type process struct {
		cgroup, command string
		pid             int
	}
	of := func(f fact.Fact) process { return process{f.Subject.Cgroup, f.Subject.Command, f.Subject.Pid} }
	sums := make(map[process]float64)
	most := 0.0
	for _, f := range fs {
		sums[of(f)] += f.Value
		most = max(most, sums[of(f)])
	}
	for _, f := range fs { // sorted, largest first, so the match is the busiest path
		if sums[of(f)] == most {
			return f.Subject, most
		}
	}
	return fact.Subject{}, 0
}

// firstWith returns the innermost function with the word in its name, if possible one
// that implements a system call ("ksys_").
func firstWith(path []string, word string) string {
	for _, prefix := range []string{"ksys_", ""} {
		for _, f := range path {
			if strings.HasPrefix(f, prefix) && strings.Contains(f, word) {
				return f
			}
		}
	}
	return ""
}
