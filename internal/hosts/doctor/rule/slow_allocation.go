package rule

import "holdfast/internal/hosts/doctor/fact"

const (
	slowTouch     = 400 // ms of CPU for 128 MiB: 12 µs a page
	criticalTouch = 2000
)

// slowAllocation finds that charging memory to a control group takes long.
func slowAllocation() Rule {
	return Rule{
		Name:      "slow-allocation",
		Signal:    "CPU time of a child in a group of its own that maps and touches 128 MiB page by page; the best of three",
		Threshold: "over 400 ms; critical over 2 s",
		Why:       "a page takes about 1 µs, 128 MiB take 20 to 90 ms, also on virtual machines. The check uses CPU time, because on busy CPUs the wall time depends on other processes",
		Source:    "measured (docs/doctor.md); Shopify's databases, where each 128 MiB took at least 100 ms. The threshold is a judgement",
		Needs:     []string{fact.AllocMs},
		Judge: func(s *fact.Set) []Finding {
			took, _ := s.Host(fact.AllocMs)
			if took <= slowTouch {
				return nil
			}
			e := []Evidence{{"128 MiB mapped and touched, CPU time", millis(took), "20 to 90 ms"}}
			if dying, ok := s.Host(fact.MemcgDying); ok {
				e = append(e, Evidence{"dying memory cgroups", number(dying), "a few hundred"})
			}
			return []Finding{{
				Severity: severity(took > criticalTouch),
				Title:    "the kernel is slow to allocate memory",
				Evidence: e,
				Cures: []Cure{
					{What: "If there are also findings of dying memory cgroups or fragmentation, cure those."},
					{What: "Otherwise, record where the time is spent.", Command: "holdfast doctor record -o bad.pb.gz"},
				},
			}}
		},
	}
}
