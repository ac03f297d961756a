package probe

import (
	"context"
	"maps"
	"slices"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/cgroup"
)

const (
	fullEvery = 100 * time.Millisecond
	fullCPUs  = 0.95                   // share of the CPUs' time between two samples: all are in use
	fullMost  = 0.3                    // of all CPUs, for the group that is named
	fullBurst = 250 * time.Millisecond // without a free CPU: other programs notice it
	// The groups are read for a fiftieth of the time at most.
	groupsShare = 50
)

// saturationProbe looks ten times a second whether all CPUs are in use, and which container or program
// of the host uses most of them. A mean over the examination does not show bursts.
func saturationProbe() Probe {
	return Probe{
		Name: "saturation", Sees: "containers and programs that use all CPUs in bursts",
		Gives: []string{fact.CPUFull, fact.GroupCPUFull, fact.GroupCPUBursts},
		Open: func(ctx context.Context, h Host, now time.Time) (Series, error) {
			if _, err := readTicks(h); err != nil {
				return nil, err
			}
			s := &saturation{host: h}
			s.hierarchy, s.counted = countsCPU(h)
			return sampled{sampling(ctx, now, fullEvery, s.take, nil), saturationFacts}, nil
		},
	}
}

// saturation takes the samples. It reads the groups only while the CPUs are in use.
type saturation struct {
	host      Host
	hierarchy cgroup.Mount
	counted   bool // the hierarchy counts CPU time
	last      map[string]float64
	due       time.Time // for the groups
}

func (s *saturation) take() map[string]float64 {
	used := hostCPU(s.host)
	before := s.last
	s.last = used
	begin := time.Now()
	if !s.counted || !isFull(before, used) || begin.Before(s.due) {
		return used
	}
	used = maps.Clone(used)
	_ = walkUnits(s.hierarchy, func(p, dir string) { // without a list no group is named
		if v, ok := cpuTime(s.hierarchy, dir); ok {
			used[p] = v
		}
	})
	s.due = begin.Add(groupsShare * time.Since(begin))
	return used
}

// isFull reports whether all CPUs were in use between two samples.
func isFull(a, b map[string]float64) bool {
	all := b[timeAll] - a[timeAll]
	return a != nil && all > 0 && b[timeBusy]-a[timeBusy] >= fullCPUs*all
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

// saturationFacts judges each run of samples between which all CPUs were in use.
func saturationFacts(samples []levels) []fact.Fact {
	full, by, bursts := 0.0, make(map[string]float64), make(map[string]float64)
	for i := 0; i < len(samples)-1; i++ {
		first := i
		for i < len(samples)-1 && isFull(samples[i].of, samples[i+1].of) {
			i++
		}
		run := samples[first : i+1]
		over := cpuSeconds(run)
		full += over
		for _, p := range users(run) {
			by[p] += over
			if run[len(run)-1].at.Sub(run[0].at) >= fullBurst {
				bursts[p]++
			}
		}
	}
	over := cpuSeconds(samples)
	if over <= 0 {
		return nil
	}
	fs := []fact.Fact{host(fact.CPUFull, full/over, fact.Share)}
	for p, v := range by {
		s := fact.Subject{Cgroup: p}
		fs = append(fs, fact.Fact{Name: fact.GroupCPUFull, Value: v / over, Unit: fact.Share, Subject: s})
		if n := bursts[p]; n > 0 {
			fs = append(fs, fact.Fact{Name: fact.GroupCPUBursts, Value: n, Unit: fact.Count, Subject: s})
		}
	}
	return fs
}

// cpuSeconds is the time of all CPUs between the first sample and the last.
func cpuSeconds(samples []levels) float64 {
	return samples[len(samples)-1].of[timeAll] - samples[0].of[timeAll]
}

// users returns the groups that used over fullMost of the CPUs in a run, between the first and the last
// sample that have groups.
func users(run []levels) (groups []string) {
	known := slices.DeleteFunc(slices.Clone(run), func(l levels) bool { return len(l.of) <= 2 })
	if len(known) < 2 {
		return nil
	}
	a, b := known[0].of, known[len(known)-1].of
	for p, v := range b {
		if was, ok := a[p]; ok && p[0] == '/' && v-was > fullMost*cpuSeconds(known) {
			groups = append(groups, p)
		}
	}
	return groups
}
