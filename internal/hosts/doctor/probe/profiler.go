package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/tracepoint"
)

const (
	// samplesFrom is the number of interrupts a second on one CPU from which it is searched whether
	// a profiler causes them: perf record takes 4,000 samples a second (perf-record(1)).
	samplesFrom = 8000
	// samplesBurst is for how long the timers of profilers are counted.
	samplesBurst = 300 * time.Millisecond
)

// profilerProbe finds programs that let the kernel interrupt the CPUs at a very high rate to take
// samples, perf_event_open(2).
func profilerProbe() Probe {
	return Probe{
		Name: "profiler", Sees: "programs that sample the CPUs at a very high rate",
		Gives: []string{fact.ProfilerSeen, fact.ProfilerSamples, fact.ProfilerBy, fact.ProfilerEvents},
		Open:  counted(readInterrupts, profilerFacts),
	}
}

// interrupts holds the interrupts of each CPU since boot, by the number of its column.
type interrupts struct {
	timers  []float64 // of each CPU's own timer: software clocks of perf are such timers
	samples []float64 // of the unit that counts performance events
}

// The lines of /proc/interrupts: of x86 (arch/x86/kernel/irq.c), and the names of the drivers
// of arm64 (drivers/clocksource/arm_arch_timer.c, drivers/perf/arm_pmu.c).
func interruptKind(label, rest string) string {
	switch {
	case label == "LOC", strings.HasSuffix(rest, "arch_timer"):
		return "timers"
	case label == "PMI", strings.HasSuffix(rest, "-pmu"):
		return "samples"
	}
	return ""
}

// readInterrupts reads the interrupts of each CPU. The counters of one kind are summed over lines.
func readInterrupts(_ context.Context, h Host) (interrupts, error) {
	text, err := read(string(h.Proc) + "/interrupts")
	if err != nil {
		return interrupts{}, err
	}
	head, lines, _ := strings.Cut(text, "\n")
	sums := map[string][]float64{}
	cpus := len(strings.Fields(head))
	for line := range strings.Lines(lines) {
		label, rest, ok := strings.Cut(strings.TrimSpace(line), ":")
		kind := interruptKind(label, rest)
		if !ok || kind == "" {
			continue
		}
		f := strings.Fields(rest)
		counts, err := floats(strings.Join(f[:min(cpus, len(f))], " "))
		if err != nil {
			return interrupts{}, fmt.Errorf("interrupts: %w", err)
		}
		sums[kind] = plus(sums[kind], counts)
	}
	if len(sums["timers"]) == 0 {
		return interrupts{}, errors.New("the kernel shows no interrupts of timers that are known here")
	}
	return interrupts{sums["timers"], sums["samples"]}, nil
}

func plus(a, b []float64) []float64 {
	if len(a) != len(b) {
		return b
	}
	for i, v := range b {
		a[i] += v
	}
	return a
}

// busiest returns the highest rate of a CPU, 0 if CPUs came or went.
func busiest(before, after []float64, over time.Duration) float64 {
	most := 0.0
	if len(before) == len(after) {
		for i := range after {
			most = max(most, (after[i]-before[i])/over.Seconds())
		}
	}
	return most
}

func profilerFacts(h Host, before, after interrupts, over time.Duration) ([]fact.Fact, error) {
	samples := busiest(before.samples, after.samples, over)
	var by []fact.Fact
	if busiest(before.timers, after.timers, over) >= samplesFrom {
		// Other programs have timers, too. Only the kernel knows which are a profiler's.
		n, of, err := sampleTimers(h)
		if err != nil {
			return nil, err
		}
		samples, by = max(samples, n), of
	}
	fs := []fact.Fact{host(fact.ProfilerSeen, 1, fact.Count)}
	if samples < samplesFrom {
		return fs, nil
	}
	fs = append(fs, host(fact.ProfilerSamples, samples, fact.PerSecond))
	return append(append(fs, largest(by, shownProcesses)...), largest(holders(h), shownProcesses)...), nil
}

// sampleTimers returns how often a second the timers of performance events expire on the CPU with
// most: the software clocks cpu-clock and task-clock (kernel/events/core.c). Each process that
// opened such events is a fact, without this program and the agent.
func sampleTimers(h Host) (float64, []fact.Fact, error) {
	symbols, err := h.LoadSymbols()
	if err != nil {
		return 0, nil, traceError(err)
	}
	function, ok := symbols.Addr("perf_swevent_hrtimer")
	if !ok {
		return 0, nil, nil // a kernel without performance events
	}
	owners, _ := tracepoint.FindOwners(h.Sys + "/kernel/btf/vmlinux") // without it they are unknown
	t, err := tracepoint.CountClocks(function, owners)
	if err != nil {
		return 0, nil, traceError(err)
	}
	begin := time.Now()
	time.Sleep(samplesBurst)
	places, err := t.Read()
	over := time.Since(begin)
	if err := errors.Join(err, t.Close()); err != nil {
		return 0, nil, err
	}
	most, by := byOwner(places, ownProgram(h))
	known := ownPids(h.Proc)
	var fs []fact.Fact
	for pid, n := range by {
		if s := processOf(h, pid); known && s.Command != "" {
			fs = append(fs, fact.Fact{Name: fact.ProfilerBy, Value: n / over.Seconds(), Unit: fact.PerSecond, Over: over.Seconds(), Subject: s})
		}
	}
	return most / over.Seconds(), fs, nil
}

// byOwner returns the expiries on the CPU with most, and those of each process that opened the
// events, on its CPU with most. Those of a process that is left out do not count.
func byOwner(places []tracepoint.Place, out func(pid int) bool) (float64, map[int]float64) {
	type key struct {
		cpu uint32
		pid int
	}
	counts, cpus := make(map[key]float64), make(map[uint32]float64)
	most, by := 0.0, make(map[int]float64)
	for _, p := range places {
		k := key{uint32(p.Object), int(p.Object >> 32)}
		if k.pid > 0 && out(k.pid) {
			continue
		}
		counts[k] += float64(p.Count)
		cpus[k.cpu] += float64(p.Count)
		most = max(most, cpus[k.cpu])
		if k.pid > 0 {
			by[k.pid] = max(by[k.pid], counts[k])
		}
	}
	return most, by
}

// ownProgram reports whether a process is this one or runs the same program, as the agent does.
func ownProgram(h Host) func(pid int) bool {
	own, err := os.Stat(string(h.Proc) + "/self/exe")
	return func(pid int) bool {
		exe, err2 := os.Stat(string(h.Proc) + "/" + strconv.Itoa(pid) + "/exe")
		return pid == os.Getpid() || err == nil && err2 == nil && os.SameFile(own, exe)
	}
}

// holders counts the performance events that each process has open, without this program and the
// agent.
func holders(h Host) []fact.Fact {
	var fs []fact.Fact
	pids, _ := h.Proc.Pids() // without a list no process is known
	out := ownProgram(h)
	for _, pid := range pids {
		if n := performanceEvents(string(h.Proc) + "/" + strconv.Itoa(pid) + "/fd"); n > 0 && !out(pid) {
			fs = append(fs, fact.Fact{Name: fact.ProfilerEvents, Value: float64(n), Unit: fact.Count, Subject: processOf(h, pid)})
		}
	}
	return fs
}

// performanceEvents counts the performance events among a process's descriptors.
func performanceEvents(dir string) (n int) {
	d, err := os.Open(dir)
	if err != nil {
		return 0 // it has ended
	}
	defer d.Close()
	names, _ := d.Readdirnames(maxOpen) // an error ends the list
	for _, name := range names {
		if to, err := os.Readlink(dir + "/" + name); err == nil && to == "anon_inode:[perf_event]" {
			n++
		}
	}
	return n
}
