package probe

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/hosts/doctor/fact"
)

// cpuProbe reads the times of the CPUs, and the packets that a CPU dropped.
func cpuProbe() Probe {
	return Probe{
		Name: "cpu", Sees: "how busy the CPUs are, softirqs, packets dropped at a CPU",
		Gives: []string{fact.HostCPUs, fact.CPUBusy, fact.CPUSteal, fact.CPUSoftirq, fact.NetDrops},
		Start: func(_ context.Context, h Host) (Finish, error) {
			before, err := readCPUs(h)
			if err != nil {
				return nil, err
			}
			drops, _ := readDrops(h) // with an error the fact is absent
			return func(_ context.Context, over time.Duration) ([]fact.Fact, error) {
				after, err := readCPUs(h)
				if err != nil {
					return nil, err
				}
				fs := cpuFacts(before, after)
				now, err := readDrops(h)
				if err == nil && drops >= 0 && now >= drops {
					fs = append(fs, host(fact.NetDrops, now-drops, fact.Count))
				}
				return fs, err
			}, nil
		},
	}
}

// ticks holds a CPU's times: user, nice, system, idle, iowait, irq, softirq, steal;
// proc_stat(5).
type ticks [8]float64

const (
	tickSystem  = 2
	tickIdle    = 3
	tickIOWait  = 4
	tickSoftirq = 6
	tickSteal   = 7
)

// tickHz is the number of ticks per second in user space (USER_HZ, on every architecture
// that Go supports).
const tickHz = 100

func (t ticks) all() float64 {
	sum := 0.0
	for _, v := range t {
		sum += v
	}
	return sum
}

// readCPUs reads each CPU's times; "cpu" is their sum.
func readCPUs(h Host) (map[string]ticks, error) {
	text, err := read(string(h.Proc) + "/stat")
	if err != nil {
		return nil, err
	}
	cpus := make(map[string]ticks)
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 9 || !strings.HasPrefix(f[0], "cpu") {
			continue
		}
		v, err := floats(strings.Join(f[1:9], " "))
		if err != nil {
			return nil, fmt.Errorf("/proc/stat: %w", err)
		}
		cpus[f[0]] = ticks(v)
	}
	if len(cpus) < 2 {
		return nil, fmt.Errorf("/proc/stat names no CPU")
	}
	return cpus, nil
}

func cpuFacts(before, after map[string]ticks) []fact.Fact {
	fs := []fact.Fact{host(fact.HostCPUs, float64(len(after)-1), fact.Count)}
	for name, b := range after {
		a, ok := before[name]
		all := b.all() - a.all()
		if !ok || all <= 0 {
			continue
		}
		if name == "cpu" {
			idle := b[tickIdle] + b[tickIOWait] - a[tickIdle] - a[tickIOWait]
			fs = append(fs, host(fact.CPUBusy, min(1, max(0, 1-idle/all)), fact.Share),
				host(fact.CPUSteal, max(0, b[tickSteal]-a[tickSteal])/all, fact.Share))
			continue
		}
		fs = append(fs, fact.Fact{Name: fact.CPUSoftirq, Value: max(0, b[tickSoftirq]-a[tickSoftirq]) / all, Unit: fact.Share,
			Subject: fact.Subject{Device: name}})
	}
	return fs
}

// readDrops sums the second column of softnet_stat: packets dropped because a CPU's
// backlog was full. Each line is a CPU, with hexadecimal numbers (net/core/net-procfs.c).
// It returns -1 with an error.
func readDrops(h Host) (float64, error) {
	text, err := read(string(h.Proc) + "/net/softnet_stat")
	if err != nil {
		return -1, err
	}
	sum := 0.0
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 2 {
			return -1, fmt.Errorf("softnet_stat: unexpected format: %q", line)
		}
		v, err := strconv.ParseUint(f[1], 16, 64)
		if err != nil {
			return -1, fmt.Errorf("softnet_stat: %w", err)
		}
		sum += float64(v)
	}
	return sum, nil
}
