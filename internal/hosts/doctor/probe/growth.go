package probe

import (
	"context"
	"slices"
	"time"

	"holdfast/internal/hosts/doctor/fact"
)

// growthProbe measures how fast containers with a memory limit take memory that the kernel
// cannot reclaim: anonymous and shared memory of memory.stat (cgroup-v1/memory.rst), and on v2 also
// kernel memory and the buffers of sockets (cgroup-v2.rst). v1 does not tell how much of the kernel
// memory can be reclaimed.
func growthProbe() Probe {
	return Probe{
		Name: "growth", Sees: "containers that will reach their memory limit",
		Gives: []string{fact.GroupHeld, fact.GroupGrowth, fact.GroupGrowthLow, fact.GroupGrowthHigh, fact.GroupPeak},
		Open: func(ctx context.Context, h Host, now time.Time) (Series, error) {
			return sampled{sampling(ctx, now, growthEvery, func() map[string]float64 { return heldMemory(h) }, nil), func(samples []levels) []fact.Fact { return withPeaks(h, memoryFacts(samples)) }}, nil
		},
	}
}

// growthEvery is the time between two samples of what grows.
const growthEvery = time.Second

// heldMemory returns the memory of each container with a limit, in bytes. Other groups have no
// limit of their own as a rule, and their growth is the host's.
func heldMemory(h Host) map[string]float64 {
	held := make(map[string]float64)
	for _, m := range h.Groups {
		if !m.V2 && !slices.Contains(m.Controllers, "memory") {
			continue
		}
		_ = walkContainers(m, func(p, dir string) { // a group that cannot be read has no growth
			s := make(sample)
			if m.V2 {
				s.single("limit", read, dir+"/memory.max")
			} else {
				s.single("limit", read, dir+"/memory.limit_in_bytes")
			}
			if limit, ok := s["limit"]; !ok || limit >= noLimit {
				return
			}
			text, err := read(dir + "/memory.stat")
			if err != nil {
				return
			}
			if n := numbers(text); m.V2 {
				held[p] = n["anon"] + n["shmem"] + n["sock"] + heldByKernel(n)
			} else {
				held[p] = n["total_rss"] + n["total_shmem"]
			}
		})
	}
	return held
}

// heldByKernel returns the kernel memory of a v2 group that the kernel cannot reclaim. "kernel" is
// all of it, since Linux 5.18.
func heldByKernel(stat map[string]float64) float64 {
	if all, ok := stat["kernel"]; ok {
		return max(0, all-stat["slab_reclaimable"])
	}
	return stat["slab_unreclaimable"]
}

func memoryFacts(samples []levels) (fs []fact.Fact) {
	for p, held := range samples[len(samples)-1].of {
		of := func(name string, v float64) {
			fs = append(fs, fact.Fact{Name: name, Value: v, Unit: fact.Bytes, Subject: fact.Subject{Cgroup: p}})
		}
		of(fact.GroupHeld, held)
		if g, ok := growthOf(samples, p); ok && g.low > 0 {
			of(fact.GroupGrowth, g.mean)
			of(fact.GroupGrowthLow, g.low)
			of(fact.GroupGrowthHigh, g.high)
		}
	}
	return fs
}

// withPeaks adds the most memory that each container has used whose memory grows.
func withPeaks(h Host, fs []fact.Fact) []fact.Fact {
	for _, f := range fs {
		if f.Name != fact.GroupGrowth {
			continue
		}
		for _, m := range h.Groups {
			file := "/memory.max_usage_in_bytes"
			if m.V2 {
				file = "/memory.peak" // Linux 5.19
			}
			if v, err := number(m.Point + f.Subject.Cgroup + file); err == nil { // otherwise it is another hierarchy
				fs = append(fs, fact.Fact{Name: fact.GroupPeak, Value: v, Unit: fact.Bytes, Subject: f.Subject})
				break
			}
		}
	}
	return fs
}
