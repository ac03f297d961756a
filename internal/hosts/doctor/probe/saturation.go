package probe

import (
	"context"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/cgroup"
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
			return saturation{sampling(ctx, now, fullEvery, func() map[string]float64 { return cpuTimes(h) }, nil)}, nil
		},
	}
}

// The times of all CPUs in a sample, in seconds. The other amounts are those of groups, whose
// names begin with a slash.
const (
	timeBusy = "busy"
	timeAll  = "all"
)

// cpuTimes returns the CPU times of the host and of each container.
func cpuTimes(h Host) map[string]float64 {
	used := make(map[string]float64)
	cpus, err := readTicks(h)
	if err != nil {
		return used
	}
	all := cpus["cpu"]
	used[timeAll], used[timeBusy] = all.all()/tickHz, (all.all()-all[tickIdle]-all[tickIOWait])/tickHz
	for _, m := range h.Groups {
		v1 := (cgroup.Group{Controllers: m.Controllers}).Has("cpuacct")
		if !v1 && !(m.V2 && hasV2CPU(m)) {
			continue
		}
		_ = walkContainers(m, func(p, dir string) { // without a list no container is named
			s := make(sample)
			if v1 {
				s.single("ns", dir+"/cpuacct.usage")
			} else {
				s.pick(dir+"/cpu.stat", map[string]string{"usage_usec": "us"})
			}
			if len(s) > 0 { // otherwise it has just been removed
				used[p] = s["ns"]/1e9 + s["us"]/1e6
			}
		})
		break
	}
	return used
}

// saturation is a Series that an examination reads once.
type saturation struct{ samples *sampler }

func (s saturation) Close() error {
	s.samples.close()
	return nil
}

func (s saturation) Read(_ context.Context, now time.Time) ([]fact.Fact, error) {
	samples := s.samples.end(now)
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
		return nil, nil
	}
	fs := []fact.Fact{host(fact.CPUFull, full/over, fact.Share)}
	for p, v := range by {
		fs = append(fs, fact.Fact{Name: fact.GroupCPUFull, Value: v / over, Unit: fact.Share, Subject: fact.Subject{Cgroup: p}})
	}
	return fs, nil
}
