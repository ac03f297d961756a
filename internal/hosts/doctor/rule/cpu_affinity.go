package rule

import (
	"slices"

	"holdfast/internal/hosts/doctor/fact"
)

// shownBound is how many of the groups that share CPUs are named.
const shownBound = 3

// cpuAffinity finds threads that wait for the CPUs that they may use while other CPUs are idle.
func cpuAffinity() Rule {
	return Rule{
		Name:      "cpu-affinity",
		Signal:    "threads that wait for a CPU (schedstat) and may not use every CPU (Cpus_allowed_list of proc_pid_status(5)), and how busy all CPUs are",
		Threshold: "a thread of a group that was not throttled waited for over 20 % of the time, and the CPUs were idle for over 10 %. A warning for each of the first three groups if threads of several share the same CPUs, otherwise a notice",
		Why:       "a thread that is bound to CPUs by sched_setaffinity(2), taskset(1) or a cpuset waits for them however idle the others are. Two programs that count CPUs from 0 bind their threads to the same ones. The kernel does not tell which program has bound a thread",
		Source:    "sched_setaffinity(2), cpuset(7). The thresholds are judgements",
		Needs:     []string{fact.TasksSeen, fact.CPUBusy},
		Judge: func(s *fact.Set) []Finding {
			busy, _ := s.Host(fact.CPUBusy)
			if busy >= busyCPUs {
				return nil // they would wait without the binding, too
			}
			var found []Finding
			for _, bound := range boundThreads(s) {
				x := Finding{
					Severity: Notice,
					Title:    "threads wait for the CPUs that they are bound to, while others are idle",
					Evidence: []Evidence{
						{"longest wait of a thread for a CPU, share of the time", percent(bound[0].Value), "under 20 %"},
						{"CPUs that it may use", bound[0].Subject.Device, "all"},
						{"all CPUs busy", percent(busy), "-"},
					},
					Cures: []Cure{
						{What: "Let the threads use all CPUs, or give each program CPUs of its own.", Command: "taskset -acp LIST PID"},
						{What: "See whether a cpuset binds the container.", Command: "docker inspect --format '{{.HostConfig.CpusetCpus}}' CONTAINER"},
					},
				}
				var groups []fact.Subject
				for _, f := range bound {
					groups = append(groups, fact.Subject{Cgroup: f.Subject.Cgroup, Pid: f.Subject.Pid, Command: f.Subject.Command})
				}
				if len(groups) > 1 {
					x.Severity = Warning
					x.Title = "a container and others are bound to the same CPUs and wait for them, while others are idle"
				}
				// Any of them may be the one that is bound by mistake.
				for i, culprit := range groups[:min(len(groups), shownBound)] {
					x.Culprit, x.Victims = culprit, slices.Delete(slices.Clone(groups), i, i+1)
					found = append(found, x)
				}
			}
			return found
		},
	}
}

// boundThreads returns the processes with a bound thread that waits, one for each group, in a list
// for each set of CPUs. Threads outside all groups are those of the kernel.
func boundThreads(s *fact.Set) (lists [][]fact.Fact) {
	for _, f := range s.Of(fact.ProcessBound) {
		stopped, _ := s.Group(fact.GroupThrottled, f.Subject.Cgroup)
		if f.Value <= waitShare || stopped > throttledShare || f.Subject.Cgroup == "/" {
			continue
		}
		i := slices.IndexFunc(lists, func(l []fact.Fact) bool { return l[0].Subject.Device == f.Subject.Device })
		if i < 0 {
			lists = append(lists, []fact.Fact{f})
		} else if !slices.ContainsFunc(lists[i], func(o fact.Fact) bool { return o.Subject.Cgroup == f.Subject.Cgroup }) {
			lists[i] = append(lists[i], f)
		}
	}
	return lists
}
