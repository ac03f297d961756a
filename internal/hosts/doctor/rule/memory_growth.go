package rule

import (
	"fmt"
	"slices"
	"time"

	"holdfast/internal/hosts/doctor/fact"
)

const (
	growthHorizon = 30 * time.Minute
	hostHorizon   = 2 * time.Hour // without memory on the host, the kernel kills any process
	growthSoon    = 5 * time.Minute
	growthLeast   = 64 << 10 // B/s
	grownLeast    = 32 << 20 // B: of the host's memory, a program that starts takes less
	fallenTo      = 0.95     // of the most that a container has used: it has released memory since
)

// memoryGrowth finds a container or program whose memory grows all the time, and tells when it will
// reach its limit, or has used up the host's memory. The growth of the slowest and of the fastest third of the time bound the estimate.
func memoryGrowth() Rule {
	return Rule{
		Name:      "memory-growth",
		Signal:    "anonymous and shared memory, and on cgroup v2 kernel memory that cannot be reclaimed, of each container and each program's control group, once a second. It is compared with its memory limit and with the memory that the host has available",
		Threshold: "it grew by over 64 KiB/s in each third of the time, and reaches the limit within 30 minutes at that rate, or has taken 32 MiB and uses up the host's memory within two hours; a warning within 5 minutes, unless it has used more before, released it, and was not near its limit then (memory.peak, max_usage_in_bytes)",
		Why:       "at a container's limit the kernel kills the largest process of the container, and without memory on the host any process. A program that fills its memory once stops growing within seconds, and does not grow in every third of the time. With transparent huge pages memory grows by 2 MiB at once, and a leak has to fill such a page in each third. A program with a garbage collector grows steadily until it collects: it uses less than it has used before",
		Source:    "Documentation/admin-guide/cgroup-v2.rst, memory.max; Documentation/filesystems/proc.rst, MemAvailable. The thresholds are judgements",
		Needs:     []string{fact.GroupHeld},
		Judge: func(s *fact.Set) []Finding {
			var found []Finding
			for _, f := range s.Of(fact.GroupGrowth) {
				group := f.Subject.Cgroup
				held, _ := s.Group(fact.GroupHeld, group)
				low, _ := s.Group(fact.GroupGrowthLow, group)
				high, _ := s.Group(fact.GroupGrowthHigh, group)
				to, ok := roomOf(s, group, held)
				if !ok || low < growthLeast || f.Value <= 0 {
					continue
				}
				until := func(rate float64) time.Duration {
					return time.Duration(to.room / rate * float64(time.Second)).Round(time.Second)
				}
				at := until(f.Value)
				if at > to.horizon || f.Value*f.Over < to.least {
					continue
				}
				peak, fallen := hasFallen(s, group, held+to.room)
				x := Finding{
					Severity: severityOf(at < growthSoon && !fallen),
					Title:    fmt.Sprintf(to.title, at),
					Evidence: []Evidence{
						{"earliest and latest, by the fastest and the slowest third", fmt.Sprintf("%v to %v", until(high), until(low)), "-"},
						{"growth of memory that cannot be reclaimed", bytes(f.Value) + "/s", "0 B/s, on average"},
						{"it has, and can take until then", fmt.Sprintf("%s, %s", bytes(held), bytes(to.room)), "-"},
					},
					Culprit: f.Subject,
					Victims: []fact.Subject{f.Subject},
					Cures:   append(slices.Clone(to.cures), Cure{What: "Restart it at a time that suits its clients."}),
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

// room is the memory that a group can take before processes are killed, in bytes.
type room struct {
	room    float64
	least   float64       // B: with less growth so far it is no finding
	horizon time.Duration // a longer time until then is no finding
	title   string        // with the time until then
	cures   []Cure
}

// roomOf returns the room of a group below its limit or in the host, whichever is less; false if
// neither is known.
func roomOf(s *fact.Set, group string, held float64) (r room, ok bool) {
	if limit, limited := s.Group(fact.GroupLimit, group); limited {
		r, ok = room{
			max(0, limit-held), 0, growthHorizon, "at its present growth a container reaches its memory limit in %v",
			[]Cure{{What: "Raise its limit until the leak is found.", Command: "docker update --memory SIZE --memory-swap SIZE CONTAINER"}},
		}, true
	}
	if free, known := s.Host(fact.MemoryAvailable); known && (!ok || free < r.room) {
		r, ok = room{
			free, grownLeast, hostHorizon, "at its present growth a program uses up the memory of the host in %v",
			[]Cure{{What: "Give it a memory limit, so that the kernel kills only this program."}},
		}, true
	}
	return r, ok
}

// hasFallen returns the most memory that a group has used, and whether it has released a part of
// that since without having been near its limit.
func hasFallen(s *fact.Set, group string, limit float64) (peak float64, fallen bool) {
	peak, known := s.Group(fact.GroupPeak, group)
	used, known2 := s.Group(fact.GroupUsage, group)
	return peak, known && known2 && used < fallenTo*peak && peak < nearLimit*limit
}
