package probe

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	"holdfast/internal/hosts/doctor/fact"
)

// cpuProbe reads the times of the CPUs, how often their heat slowed them down, and the packets
// that a CPU dropped.
func cpuProbe() Probe {
	return Probe{
		Name: "cpu", Sees: "how busy the CPUs are, waits for them, softirqs, packets dropped at a CPU",
		Gives: []string{fact.HostCPUs, fact.CPUBusy, fact.CPUSteal, fact.CPUSoftirq, fact.SoftirqsNet, fact.SoftirqsDisk, fact.CPUThermal, fact.NetDrops, fact.CPUSome},
		Open:  counted(readCPU, cpuFacts),
	}
}

// cpuReading holds the times of the CPUs, the dropped packets, and the time for which a
// task waited for a CPU.
type cpuReading struct {
	cpus     map[string]ticks
	counters sample
	err      error // why the number of dropped packets is unknown
}

func readCPU(_ context.Context, h Host) (r cpuReading, err error) {
	text, err := read(string(h.Proc) + "/stat")
	if err != nil {
		return r, err
	}
	if r.cpus, err = parseTicks(text); err != nil {
		return r, err
	}
	r.counters = make(sample)
	r.counters.softirqs(text)
	r.counters.stall("some", "some", read, string(h.Proc)+"/pressure/cpu")
	r.counters.throttles(h.Sys)
	// net/core/net-procfs.c
	stats, err := parsed(h, procfs.FS.NetSoftnetStat)
	if r.err = err; err == nil {
		r.counters["drops"] = 0
	}
	for _, s := range stats {
		r.counters["drops"] += float64(s.Dropped)
	}
	return r, nil
}

// softirqs adds the number of softirqs of the network and of disks: proc_stat(5), in the order of
// kernel/softirq.c, the sum first.
func (s sample) softirqs(stat string) {
	const netTX, netRX, block, poll = 3, 4, 5, 6
	_, rest, _ := strings.Cut(stat, "\nsoftirq ")
	line, _, _ := strings.Cut(rest, "\n")
	if v, err := floats(line); err == nil && len(v) > poll {
		s["network"], s["disks"] = v[netTX]+v[netRX], v[block]+v[poll]
	}
}

// throttles adds the number of times that a core was slowed down because it was too hot
// (Documentation/ABI/testing/sysfs-devices-system-cpu, thermal_throttle). Virtual CPUs and
// CPUs of ARM have no such counter.
func (s sample) throttles(sys string) {
	files, _ := filepath.Glob(sys + "/devices/system/cpu/cpu*/thermal_throttle/core_throttle_count") // the pattern is valid
	for _, file := range files {
		if n, err := number(file); err == nil { // otherwise the CPU has just been taken off
			s["throttles"] += n
		}
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

// readTicks reads each CPU's times; "cpu" is their sum.
func readTicks(h Host) (map[string]ticks, error) {
	text, err := read(string(h.Proc) + "/stat")
	if err != nil {
		return nil, err
	}
	return parseTicks(text)
}

func parseTicks(stat string) (map[string]ticks, error) {
	cpus := make(map[string]ticks)
	for line := range strings.Lines(stat) {
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

func cpuFacts(_ Host, before, after cpuReading, over time.Duration) ([]fact.Fact, error) {
	fs := []fact.Fact{host(fact.HostCPUs, float64(len(after.cpus)-1), fact.Count)}
	for name, b := range after.cpus {
		a, ok := before.cpus[name]
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
	for key, name := range map[string]string{"network": fact.SoftirqsNet, "disks": fact.SoftirqsDisk} {
		if n, ok := after.counters.grew(before.counters, key); ok {
			fs = append(fs, host(name, n/over.Seconds(), fact.PerSecond))
		}
	}
	if n, ok := after.counters.grew(before.counters, "drops"); ok {
		fs = append(fs, host(fact.NetDrops, n, fact.Count))
	}
	if n, ok := after.counters.grew(before.counters, "throttles"); ok {
		fs = append(fs, host(fact.CPUThermal, n/over.Seconds(), fact.PerSecond))
	}
	if v, ok := after.counters.grew(before.counters, "some"); ok {
		fs = append(fs, host(fact.CPUSome, min(1, v/over.Seconds()), fact.Share))
	}
	return fs, after.err
}
