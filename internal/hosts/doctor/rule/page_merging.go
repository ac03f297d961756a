package rule

import "holdfast/internal/hosts/doctor/fact"

const (
	mergingBusy = 0.20 // of one CPU
	mergingPage = 2e-6 // s of CPU time for each page, if only the pages are known
)

// pageMerging finds a program whose memory keeps ksmd busy.
func pageMerging() Rule {
	return Rule{
		Name:      "page-merging",
		Signal:    "CPU time of the kernel's thread ksmd, or where it is not visible the pages that it compares, at 2 µs each; and the memory that each process offers it (ksm_stat)",
		Threshold: "over 20 % of one CPU. A warning if containers wait for CPUs or disks. The process with over half of that memory is named",
		Why:       "ksmd compares all memory that programs offer, again and again, and its CPU time counts for no container. With its defaults it scans 100 pages in 20 ms, which takes some percent of a CPU; a host of virtual machines may want more, to save memory",
		Source:    "Documentation/admin-guide/mm/ksm.rst, madvise(2). measured on 6.18: 112,000 pages a second took 23 % of a CPU. The threshold is a judgement",
		Needs:     []string{fact.MergingSeen},
		Judge: func(s *fact.Set) []Finding {
			cpu, known := s.Host(fact.MergingCPU)
			pages, _ := s.Host(fact.MergingScanned)
			if !known {
				cpu = pages * mergingPage
			}
			if cpu <= mergingBusy {
				return nil
			}
			x := Finding{
				Title:    "ksmd, which merges equal pages of programs, uses much CPU time",
				Evidence: []Evidence{{"CPU time of ksmd, of one CPU", percent(cpu), "some percent"}},
				Cures: []Cure{
					{What: "Let it scan less.", Command: "echo 20 >/sys/kernel/mm/ksm/sleep_millisecs; echo 100 >/sys/kernel/mm/ksm/pages_to_scan"},
					{What: "Or stop it. Merged pages stay merged.", Command: "echo 0 >/sys/kernel/mm/ksm/run"},
				},
			}
			if pages > 0 {
				x.Evidence = append(x.Evidence, Evidence{"pages that it compares", perSecond(pages), "5,000/s"})
			}
			by := s.Of(fact.MergingBy)
			sum := total(by)
			if len(by) > 0 && by[0].Value > sum/2 {
				x.Culprit = by[0].Subject
				x.Evidence = append(x.Evidence, Evidence{"memory that the process named offers, of all", bytes(by[0].Value) + " of " + bytes(sum), "-"})
			}
			x.Victims = harmed(s, x.Culprit.Cgroup)
			x.Severity = byHarm(x.Victims)
			return []Finding{x}
		},
	}
}
