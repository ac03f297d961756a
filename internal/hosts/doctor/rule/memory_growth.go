package rule

import (
	"fmt"
	"time"

	"holdfast/internal/hosts/doctor/fact"
)

const (
	growthHorizon = 30 * time.Minute
	growthSoon    = 5 * time.Minute
	growthLeast   = 64 << 10 // B/s
	fallenTo      = 0.95     // of the most that a container has used: it has released memory since
)

// memoryGrowth finds a container whose memory grows all the time, and tells when it will reach
// its limit. The growth of the slowest and of the fastest third of the time bound the estimate.
func memoryGrowth() Rule {
	return Rule{
		Name:      "memory-growth",
		Signal:    "anonymous and shared memory, and on cgroup v2 kernel memory that cannot be reclaimed, of each container with a memory limit, once a second, compared with the limit",
		Threshold: "it grew by over 64 KiB/s in each third of the time, and reaches the limit within 30 minutes at that rate; a warning within 5 minutes, unless the container has used more before, released it, and was not near its limit then (memory.peak, max_usage_in_bytes)",
		Why:       "at the limit the kernel kills the container's largest process. A program that fills its memory once stops growing within seconds, and does not grow in every third of the time. With transparent huge pages memory grows by 2 MiB at once, and a leak has to fill such a page in each third. A program with a garbage collector grows steadily until it collects: it uses less than it has used before",
		Source:    "Documentation/admin-guide/cgroup-v2.rst, memory.max. The thresholds are judgements",
		Needs:     []string{fact.GroupHeld},
		Judge: func(s *fact.Set) []Finding {
			var found []Finding
			for _, f := range s.Of(fact.GroupGrowth) {
				group := f.Subject.Cgroup
				limit, limited := s.Group(fact.GroupLimit, group)
				held, _ := s.Group(fact.GroupHeld, group)
				low, _ := s.Group(fact.GroupGrowthLow, group)
				high, _ := s.Group(fact.GroupGrowthHigh, group)
				if !limited || low < growthLeast || f.Value <= 0 {
					continue
				}
				until := func(rate float64) time.Duration {
					return time.Duration(max(0, limit-held) / rate * float64(time.Second)).Round(time.Second)
				}
				at := until(f.Value)
				if at > growthHorizon {
					continue
				}
				peak, fallen := hasFallen(s, group, limit)
				x := Finding{
					Severity: severityOf(at < growthSoon && !fallen),
					Title:    fmt.Sprintf("at its present growth a container reaches its memory limit in %v", at),
					Evidence: []Evidence{
						{"earliest and latest, by the fastest and the slowest third", fmt.Sprintf("%v to %v", until(high), until(low)), "-"},
						{"growth of memory that cannot be reclaimed", bytes(f.Value) + "/s", "0 B/s, on average"},
						{"of its limit", fmt.Sprintf("%s of %s", bytes(held), bytes(limit)), "-"},
					},
					Culprit: f.Subject,
					Victims: []fact.Subject{f.Subject},
					Cures: []Cure{
						{What: "Raise its limit until the leak is found.", Command: "docker update --memory SIZE --memory-swap SIZE CONTAINER"},
						{What: "Restart it at a time that suits its clients."},
					},
				}
				if fallen {
					x.Evidence = append(x.Evidence, Evidence{"the most that it has used so far, before it released memory", bytes(peak), "-"})
				}
				found = append(found, x)
			}
			return found
		},
	}
}

// hasFallen returns the most memory that a group has used, and whether it has released a part of
// that since without having been near its limit.
func hasFallen(s *fact.Set, group string, limit float64) (peak float64, fallen bool) {
	peak, known := s.Group(fact.GroupPeak, group)
	used, known2 := s.Group(fact.GroupUsage, group)
	return peak, known && known2 && used < fallenTo*peak && peak < nearLimit*limit
}
