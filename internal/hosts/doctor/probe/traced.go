package probe

import (
	"maps"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/proc"
)

const (
	// runsFrom is how often a second a thread has to begin to run for its tracer to be read. A
	// thread that stops at each system call does so twice for each, ptrace(2).
	runsFrom = 500
	// maxTraced bounds the threads whose tracer is read, those that run most often. On a busy host
	// many do, and each read takes some 20 µs.
	maxTraced = 100
	// stopTime is the least CPU time that a tracer needs for a stop: it is woken, waits for the
	// thread, and continues it. One that does nothing else needed 7 µs on Linux 6.18.
	stopTime = 5 * time.Microsecond
)

// traced returns which processes stop others often, and which they stop. A debugger may be attached
// to a program that runs often without stopping it: then it uses no CPU time itself, which bounds
// the stops.
func traced(h Host, grown map[thread]schedule, over time.Duration) []fact.Fact {
	var often []thread
	for t, d := range grown {
		if d.runs >= runsFrom*over.Seconds() {
			often = append(often, t)
		}
	}
	sort.Slice(often, func(i, j int) bool { return grown[often[j]].runs < grown[often[i]].runs })
	stops, of := make(map[thread]float64), make(map[thread]map[int]float64) // by tracer; by tracer and process
	for _, t := range often[:min(len(often), maxTraced)] {
		tracer, ok := tracerOf(h, t)
		if !ok {
			continue
		}
		if of[tracer] == nil {
			of[tracer] = make(map[int]float64)
		}
		stops[tracer] += grown[t].runs
		of[tracer][t.pid] += grown[t].runs
	}
	var fs []fact.Fact
	for tracer, n := range stops {
		n = min(n, grown[tracer].ran/float64(stopTime)) / over.Seconds()
		if n < runsFrom || emulates(h, tracer.pid) {
			continue
		}
		fs = append(fs, fact.Fact{Name: fact.Tracer, Value: n, Unit: fact.PerSecond, Subject: processOf(h, tracer.pid)})
		for _, pid := range slices.Sorted(maps.Keys(of[tracer])) {
			s := processOf(h, pid)
			s.Device = strconv.Itoa(tracer.pid)
			fs = append(fs, fact.Fact{Name: fact.Traced, Value: of[tracer][pid] / over.Seconds(), Unit: fact.PerSecond, Subject: s})
		}
	}
	return fs
}

// tracerOf returns the thread that traces a thread: TracerPid of proc_pid_status(5). That of
// another pid namespace is not known.
func tracerOf(h Host, t thread) (thread, bool) {
	tracer := status(t.dir(h), "TracerPid")
	if tracer == 0 {
		return thread{}, false
	}
	pid := status(string(h.Proc)+"/"+strconv.Itoa(tracer), "Tgid") // procfs has threads, too, but does not list them
	return thread{pid, tracer}, pid > 0
}

// status returns a number of a task's status file, 0 if it is not there.
func status(dir, name string) int {
	text, _ := read(dir + "/status") // none if the task has ended
	v, _ := proc.Field([]byte(text), name)
	n, _ := strconv.Atoi(v)
	return n
}

// emulates reports whether a process is the kernel of a sandbox of gVisor, which makes the system
// calls of the sandbox's programs instead of the host. On the platform ptrace it stops them for that.
func emulates(h Host, pid int) bool {
	exe, err := h.Proc.Exe(pid)
	return err == nil && strings.HasPrefix(filepath.Base(exe), "runsc")
}
