package probe

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	"holdfast/internal/hosts/doctor/fact"
)

// tracingProbe counts the events that the kernel's tracing records, by instance
// (Documentation/trace/ftrace.rst, per_cpu/cpuN/stats). BPF programs and performance events record
// none there.
func tracingProbe() Probe {
	return Probe{
		Name: "tracing", Sees: "kernel tracing that was left on", Rare: true,
		Gives: []string{fact.TracingSeen, fact.TraceEvents},
		Open:  counted(readTracing, tracingFacts),
	}
}

// readTracing returns the number of events that each instance has recorded so far, by its directory.
func readTracing(_ context.Context, h Host) (sample, error) {
	s := make(sample)
	for _, root := range []string{"/kernel/tracing", "/kernel/debug/tracing"} {
		root = h.Sys + root
		if _, err := os.Stat(root + "/tracing_on"); err != nil {
			continue // tracefs is not mounted there
		}
		instances, _ := filepath.Glob(root + "/instances/*") // the pattern is valid
		for _, dir := range append(instances, root) {
			if n, ok := recorded(dir); ok {
				s[dir] = n
			}
		}
		break
	}
	return s, nil
}

// recorded returns the number of events in the buffers of an instance, of those that others have
// overwritten, and of those that were read. It is unknown if the instance has no tracing on.
func recorded(dir string) (n float64, ok bool) {
	if on, err := number(dir + "/tracing_on"); err != nil || on == 0 {
		return 0, false
	}
	files, _ := filepath.Glob(dir + "/per_cpu/cpu*/stats") // the pattern is valid
	for _, file := range files {
		text, err := read(file)
		if err != nil {
			return 0, false // the instance has been removed
		}
		stats := make(sample)
		for line := range strings.Lines(text) {
			name, _, _ := strings.Cut(line, ":")
			stats[name] = fieldOf(line)
		}
		n += stats["entries"] + stats["overrun"] + stats["read events"]
	}
	return n, len(files) > 0
}

// fieldOf returns the number after the colon of a line, 0 without one.
func fieldOf(line string) float64 {
	_, text, _ := strings.Cut(line, ":")
	if v, err := floats(text); err == nil && len(v) == 1 {
		return v[0]
	}
	return 0
}

func tracingFacts(_ Host, before, after sample, over time.Duration) ([]fact.Fact, error) {
	fs := []fact.Fact{host(fact.TracingSeen, float64(len(after)), fact.Count)}
	for dir := range after {
		if n, ok := after.grew(before, dir); ok {
			fs = append(fs, fact.Fact{Name: fact.TraceEvents, Value: n / over.Seconds(), Unit: fact.PerSecond, Subject: fact.Subject{Device: dir}})
		}
	}
	return fs, nil
}
