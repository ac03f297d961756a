package rule

import "holdfast/internal/hosts/doctor/fact"

const (
	slowTouch     = 400 // ms of CPU for 128 MiB: 12 µs a page
	criticalTouch = 2000
	keptMuch      = 0.10 // of memory: the defaults keep 0.2 to 5 % free, and no huge pages
)

// slowAllocation finds that charging memory to a control group takes long, and a setting with which the
// kernel frees memory though there is enough.
func slowAllocation() Rule {
	return Rule{
		Name:      "slow-allocation",
		Signal:    "CPU time of a child in a group of its own that maps and touches 128 MiB page by page; the best of three. The high watermarks of all zones, up to which the kernel frees memory (zoneinfo), and huge pages that nothing uses (meminfo)",
		Threshold: "over 400 ms; critical over 2 s. Watermarks, or unused huge pages, over 10 % of memory: a notice",
		Why:       "a page takes about 1 µs, 128 MiB take 20 to 90 ms, also on virtual machines. The check uses CPU time, because on busy CPUs the wall time depends on other processes. Memory below the watermarks holds no page cache, and kswapd takes CPU time to keep it free: files are read again from the disk. A huge page of vm.nr_hugepages serves only programs that ask for one",
		Source:    "measured (docs/doctor.md); Shopify's databases, where each 128 MiB took at least 100 ms; Documentation/admin-guide/sysctl/vm.rst, watermark_scale_factor and min_free_kbytes; mm/hugetlbpage.rst. The thresholds are judgements",
		Needs:     []string{fact.AllocMs},
		Judge: func(s *fact.Set) []Finding {
			found := keptFree(s)
			took, _ := s.Host(fact.AllocMs)
			if took <= slowTouch {
				return found
			}
			e := []Evidence{{"128 MiB mapped and touched, CPU time", millis(took), "20 to 90 ms"}}
			if dying, ok := s.Host(fact.MemcgDying); ok {
				e = append(e, Evidence{"dying memory cgroups", number(dying), "a few hundred"})
			}
			return append(found, Finding{
				Severity: severity(took > criticalTouch),
				Title:    "the kernel is slow to allocate memory",
				Evidence: e,
				Cures: []Cure{
					{What: "If there are also findings of dying memory cgroups or fragmentation, cure those."},
					{What: "Otherwise, record where the time is spent.", Command: "holdfast doctor record -o bad.pb.gz"},
				},
			})
		},
	}
}

// keptFree finds settings with which the kernel keeps much memory from programs and the page cache.
func keptFree(s *fact.Set) (found []Finding) {
	for _, kept := range []struct {
		fact, title, what string
		cure              Cure
	}{
		{fact.MemKept, "the kernel keeps much memory free, which programs and the page cache lack", "high watermarks of all zones, of memory",
			Cure{What: "Restore the defaults, also in /etc/sysctl.d. The kernel computes vm.min_free_kbytes at its start.", Command: "sysctl vm.watermark_scale_factor=10; sysctl vm.min_free_kbytes"}},
		{fact.MemHuge, "much memory is in huge pages that no program uses", "huge pages that are free and not reserved, of memory",
			Cure{What: "Configure fewer, also in /etc/sysctl.d and on the kernel's command line.", Command: "grep Huge /proc/meminfo; sysctl vm.nr_hugepages=N"}},
	} {
		if share, _ := s.Host(kept.fact); share > keptMuch {
			found = append(found, Finding{Severity: Notice, Title: kept.title, Evidence: []Evidence{{kept.what, percent(share), "under 10 %"}}, Cures: []Cure{kept.cure}})
		}
	}
	return found
}
