package rule

import "holdfast/internal/hosts/doctor/fact"

const (
	hugeBusy  = 0.20  // of one CPU
	hugeBuild = 1e-3  // s of CPU time for a huge page that is built: 2 MiB are copied
	hugeSleep = 10000 // ms, the kernel's default
	hugeBatch = 4096  // pages, the kernel's default
	// hugeFaults is the rate of huge pages that faults take from which they are a finding: 400 MB/s are
	// cleared for it. hugeStalls is the rate at which programs wait for the kernel to make room for one.
	hugeFaults = 200
	hugeStalls = 10
)

// busyKhugepaged finds settings of huge pages that cost much CPU time: khugepaged keeps a CPU busy, or
// programs get huge pages that do not ask for them.
func busyKhugepaged() Rule {
	return Rule{
		Name:      "khugepaged",
		Signal:    "CPU time of the kernel's thread khugepaged, the huge pages that it builds (pages_collapsed), and its settings. Where the thread is not visible, its passes over all memory (full_scans)",
		Threshold: "khugepaged: over 20 % of one CPU. A warning if containers wait for CPUs, unless the huge pages that it builds explain half of that time, at 1 ms each. Where it is not visible: a notice if it makes passes without sleep between them. If the setting enabled is always: a notice from 200 huge pages in a second that page faults take. It is a warning if programs also wait 10 times in a second for memory to be compacted",
		Why:       "khugepaged searches the memory of all programs, and its CPU time counts for no container. With its defaults it looks at 4,096 pages in 10 s, which takes far less than 1 % of a CPU. With settings that let it search faster, it is busy for a while after large programs have started, builds huge pages, and rests; a search that builds few is of no use. With enabled set to always, a program that touches one byte of an aligned 2 MiB gets all of them. The kernel clears them in the fault, at about 5 to 10 GB/s. A program with a sparse heap then has many times the memory that it uses",
		Source:    "Documentation/admin-guide/mm/transhuge.rst; mm/khugepaged.c. The threshold is a judgement",
		Needs:     []string{fact.HugeSeen},
		Judge: func(s *fact.Set) []Finding {
			found := alwaysHuge(s)
			cpu, known := s.Host(fact.HugeCPU)
			sleep, set := s.Host(fact.HugeSleep)
			scans, _ := s.Host(fact.HugeScans)
			if known && cpu <= hugeBusy || !known && (!set || sleep > 0 || scans == 0) {
				return found
			}
			x := Finding{Severity: Notice, Title: "khugepaged, which builds huge pages, does not sleep between its passes over all memory"}
			built, _ := s.Host(fact.HugeBuilt)
			if known {
				x.Title = "khugepaged, which builds huge pages, uses much CPU time"
				x.Evidence = []Evidence{{"CPU time of khugepaged, of one CPU", percent(cpu), "under 1 %"}}
				x.Victims = victims(s, "", starved(s))
				if built*hugeBuild < cpu/2 {
					x.Severity = byHarm(x.Victims)
				}
			}
			batch, _ := s.Host(fact.HugeBatch)
			x.Evidence = append(x.Evidence,
				Evidence{"passes over all memory", perSecond(scans), "under 1/s"},
				Evidence{"huge pages that it builds", perSecond(built), "-"},
				Evidence{"sleep between two searches, scan_sleep_millisecs", number(sleep), number(hugeSleep)},
				Evidence{"pages of a search, pages_to_scan", number(batch), number(hugeBatch)})
			x.Cures = []Cure{hugeCure(sleep, batch)}
			return append(found, x)
		},
	}
}

// alwaysHuge finds huge pages that programs did not ask for and take often.
func alwaysHuge(s *fact.Set) []Finding {
	always, _ := s.Host(fact.HugeAlways)
	faults, _ := s.Host(fact.HugeFaults)
	if always == 0 || faults < hugeFaults {
		return nil
	}
	stalls, _ := s.Host(fact.CompactStalls)
	return []Finding{{
		Severity: severityOf(stalls >= hugeStalls), Title: "huge pages are on for all programs, and page faults wait until the kernel has cleared them",
		Evidence: []Evidence{
			{"huge pages that faults took, of 2 MiB", perSecond(faults), "under 200/s"},
			{"waits of programs for memory to be compacted", perSecond(stalls), "under 10/s"},
		},
		Cures: []Cure{{What: "Give huge pages only to programs that ask for them, and restart those with sparse heaps.", Command: "echo madvise >/sys/kernel/mm/transparent_hugepage/enabled"}},
	}}
}

func hugeCure(sleep, batch float64) Cure {
	const dir = "/sys/kernel/mm/transparent_hugepage/khugepaged"
	if sleep >= hugeSleep && batch <= hugeBatch {
		return Cure{What: "Its settings let it search little: it finds no free memory for huge pages. Let it not compact memory for them.", Command: "echo 0 >" + dir + "/defrag"}
	}
	return Cure{What: "Restore the kernel's defaults.", Command: "echo 10000 >" + dir + "/scan_sleep_millisecs; echo 4096 >" + dir + "/pages_to_scan"}
}
