package probe

import (
	"context"
	"slices"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/cgroup"
)

// growthProbe measures how fast containers and programs of the host take memory that the kernel
// cannot reclaim: anonymous and shared memory of memory.stat (cgroup-v1/memory.rst), and on v2 also
// kernel memory and the buffers of sockets (cgroup-v2.rst). v1 does not tell how much of the kernel
// memory can be reclaimed.
func growthProbe() Probe {
	return Probe{
		Name: "growth", Sees: "containers and programs that will reach a memory limit, or use up the host's memory",
		Gives: []string{fact.GroupHeld, fact.GroupGrowth, fact.GroupGrowthLow, fact.GroupGrowthHigh, fact.GroupPeak, fact.MemoryAvailable},
		Open: func(ctx context.Context, h Host, now time.Time) (Series, error) {
			last := make(heldReader)
			sample := func() map[string]float64 { return last.read(h) }
			return sampled{sampling(ctx, now, growthEvery, sample, nil), func(samples []levels) []fact.Fact { return withPeaks(h, memoryFacts(h, samples)) }}, nil
		},
	}
}

// growthEvery is the time between two samples of what grows.
const growthEvery = time.Second

// heldMemory is the memory of a group in bytes.
type heldMemory struct {
	used float64 // all
	held float64 // what cannot be reclaimed
}

// heldReader has the last reading of each group by its path.
type heldReader map[string]heldMemory

// read returns the memory of each group that cannot be reclaimed, in bytes. Of a group that uses as
// much as at the last reading, memory.stat is not read again: most containers of a host are idle.
func (r heldReader) read(h Host) map[string]float64 {
	held := make(map[string]float64)
	for _, m := range h.Groups {
		if !m.V2 && !slices.Contains(m.Controllers, "memory") {
			continue
		}
		_ = walkUnits(m, func(p, dir string) { // a group that cannot be read has no growth
			if used, ok := usedMemory(m, dir); !ok {
				return
			} else if last, ok := r[p]; !ok || last.used != used {
				n, err := heldOf(m, dir)
				if err != nil {
					return
				}
				r[p] = heldMemory{used, n}
			}
			held[p] = r[p].held
		})
	}
	return held
}

// usedMemory returns all memory of a group in bytes, false without the memory controller.
func usedMemory(m cgroup.Mount, dir string) (float64, bool) {
	file := "/memory.usage_in_bytes"
	if m.V2 {
		file = "/memory.current"
	}
	v, err := number(dir + file)
	return v, err == nil
}

func heldOf(m cgroup.Mount, dir string) (float64, error) {
	text, err := read(dir + "/memory.stat")
	if err != nil {
		return 0, err
	}
	n := numbers(text)
	if m.V2 {
		return n["anon"] + n["shmem"] + n["sock"] + heldByKernel(n), nil
	}
	return n["total_rss"] + n["total_shmem"], nil
}

// heldByKernel returns the kernel memory of a v2 group that the kernel cannot reclaim. "kernel" is
// all of it, since Linux 5.18.
func heldByKernel(stat map[string]float64) float64 {
	if all, ok := stat["kernel"]; ok {
		return max(0, all-stat["slab_reclaimable"])
	}
	return stat["slab_unreclaimable"]
}

func memoryFacts(h Host, samples []levels) (fs []fact.Fact) {
	if free, err := freeMemory(h); err == nil { // without it, growth is compared with limits only
		fs = append(fs, host(fact.MemoryAvailable, free, fact.Bytes))
	}
	last := samples[len(samples)-1]
	over := last.at.Sub(samples[0].at).Seconds()
	for p, held := range last.of {
		of := func(name string, v float64) {
			fs = append(fs, fact.Fact{Name: name, Value: v, Unit: fact.Bytes, Over: over, Subject: fact.Subject{Cgroup: p}})
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
