package rule

import "holdfast/internal/hosts/doctor/fact"

const (
	heldSome = 0.10
	heldMuch = 0.25
)

// fanotifyWait finds a scanner that holds up threads that open files.
func fanotifyWait() Rule {
	return Rule{
		Name:      "fanotify-wait",
		Signal:    "if a process has a fanotify group that the kernel asks for permission (fdinfo): 8 to 20 times in two seconds, the threads that wait for its answer (wchan) and that have not run for 1 ms; and how long the scanner waited for a CPU (schedstat)",
		Threshold: "threads in over 10 % of the samples, less the share of the time for which the scanner waited for a CPU; a warning over 25 % if there are threads of containers. The process with over half of the writes is named, as each answer is one",
		Why:       "each open of a file waits until the scanner has answered, and a scanner that answers one at a time holds up all containers together. An answer from its cache takes some 50 µs, and a scan of a new file some milliseconds, once. On busy CPUs the scanner is late because it waits for one",
		Source:    "fanotify(7), fanotify_mark(2); fs/notify/fanotify/fanotify.c. The thresholds are judgements",
		Needs:     []string{fact.Scanners},
		Judge: func(s *fact.Set) []Finding {
			held, _ := s.Host(fact.FanotifyHeld)
			_, starved := worst(s.Of(fact.FanotifyCPUWait))
			own := held - starved
			if own <= heldSome {
				return nil
			}
			x := Finding{
				Severity: Notice,
				Title:    "a program that scans files holds up those that open them",
				Evidence: []Evidence{{"samples in which a thread waited for over 1 ms until it might open or read a file", percent(held), "under 10 %"}, {"time for which the scanner waited for a CPU", percent(starved), "0 %"}},
				Cures: []Cure{
					{What: "Exclude the directories of the containers and of the engine from the scan, or let the scanner answer in several threads."},
					{What: "See the threads that wait.", Command: "grep -s fanotify_ /proc/[0-9]*/task/*/wchan"},
				},
			}
			by := s.Of(fact.FanotifyBy)
			if len(by) == 1 || len(by) > 1 && by[0].Value > total(by)/2 {
				x.Culprit = by[0].Subject
			}
			if len(by) > 0 {
				x.Evidence = append(x.Evidence, Evidence{"processes that are asked; writes of the one that writes most", number(float64(len(by))) + "; " + perSecond(by[0].Value), "-"})
			}
			for _, w := range s.Of(fact.FanotifyWait) {
				if w.Value <= heldSome || w.Subject.Cgroup == x.Culprit.Cgroup || len(x.Victims) == shownVictims {
					continue
				}
				x.Victims = append(x.Victims, w.Subject)
				if own > heldMuch && fact.ContainerID(w.Subject.Cgroup) != "" {
					x.Severity = Warning
				}
			}
			return []Finding{x}
		},
	}
}
