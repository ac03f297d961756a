package probe

import (
	"context"
	"time"

	"holdfast/internal/hosts/doctor/fact"
)

const (
	fullEvery = 500 * time.Millisecond
	fullCPUs  = 0.95 // share of the CPUs' time between two samples: all are in use
	fullMost  = 0.3  // of all CPUs, for the group that is named
)

// saturationProbe looks twice a second whether all CPUs are in use, and which container uses most
// of them. A mean over the examination does not show bursts.
func saturationProbe() Probe {
	return Probe{
		Name: "saturation", Sees: "containers that use all CPUs in bursts",
		Gives: []string{fact.CPUFull, fact.GroupCPUFull},
		Open: func(ctx context.Context, h Host, now time.Time) (Series, error) {
			if _, err := readTicks(h); err != nil {
				return nil, err
			}
			m, counted := countsCPU(h)
			return sampled{sampling(ctx, now, fullEvery, func() map[string]float64 {
				used := hostCPU(h)
				if counted {
					_ = walkContainers(m, func(p, dir string) { // without a list no container is named
						if v, ok := cpuTime(m, dir); ok {
							used[p] = v
						}
					})
				}
				return used
			}, nil), saturationFacts}, nil
		},
	}
}

// The times of all CPUs in a sample, in seconds. The other amounts are those of groups, whose
// names begin with a slash.
const (
	timeBusy = "busy"
	timeAll  = "all"
)

// hostCPU returns the CPU times of the host.
func hostCPU(h Host) map[string]float64 {
	used := make(map[string]float64)
	if cpus, err := readTicks(h); err == nil {
		all := cpus["cpu"]
		used[timeAll], used[timeBusy] = all.all()/tickHz, (all.all()-all[tickIdle]-all[tickIOWait])/tickHz
	}
	return used
}

func saturationFacts(samples []levels) []fact.Fact {
	over, full, by := 0.0, 0.0, make(map[string]float64)
	for i := range len(samples) - 1 {
		a, b := samples[i], samples[i+1]
		all := b.of[timeAll] - a.of[timeAll]
		over += all
		if all <= 0 || b.of[timeBusy]-a.of[timeBusy] < fullCPUs*all {
			continue
		}
		full += all
		for p, v := range b.of {
			if was, known := a.of[p]; known && p[0] == '/' && v-was > fullMost*all {
				by[p] += all
			}
		}
	}
	if over <= 0 {
		return nil
	}
	fs := []fact.Fact{host(fact.CPUFull, full/over, fact.Share)}
	for p, v := range by {
		fs = append(fs, fact.Fact{Name: fact.GroupCPUFull, Value: v / over, Unit: fact.Share, Subject: fact.Subject{Cgroup: p}})
	}
	return fs
}
