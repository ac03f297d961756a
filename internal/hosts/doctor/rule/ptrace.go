package rule

import (
	"fmt"
	"slices"
	"strconv"

	"holdfast/internal/hosts/doctor/fact"
)

const (
	tracerStops  = 2000 // a second
	tracerSlows  = 5000
	tracerVisits = 20 // a second: a debugger stops a program seldom
	shownTracees = 3
)

// ptrace finds a tracer that stops other processes at each of their system calls.
func ptrace() Rule {
	return Rule{
		Name:      "ptrace",
		Signal:    "tracers (TracerPid) of the threads that begin to run at least 500 times a second (schedstat). Their stops are at most as many as those threads run, and as many as the tracer has CPU time for, at 5 µs each. Also the stops of a container's processes that the kernel reports to a tracer in another control group (SIGCHLD, tracepoint signal_generate)",
		Threshold: "over 2,000 stops/s. A warning over 5,000/s if the process is in a container and its tracer is not in the same one. Over 20 stops/s of a container that a tracer outside attaches to again and again: a notice. It is a warning as well if containers wait for CPUs or disks",
		Why:       "a traced process stops at the begin and at the end of each system call, and continues when the tracer has run: with strace a call took 79 µs instead of 1. A sampling profiler stops it for each sample, for as long as it reads the stack. A debugger at a breakpoint, or one that only waits, stops it seldom. A sandbox of gVisor that emulates system calls so is left out",
		Source:    "ptrace(2), strace(1); measured on 6.18. The thresholds are judgements",
		Needs:     []string{fact.TasksSeen},
		Judge: func(s *fact.Set) []Finding {
			var found []Finding
			for _, f := range s.Of(fact.Tracer) {
				if f.Value <= tracerStops {
					continue
				}
				tracees, foreign := traceesOf(s, f.Subject)
				x := Finding{
					Title:    "a tracer stops another process at its system calls",
					Evidence: []Evidence{{"stops of the processes that it traces, at most", perSecond(f.Value), "under 2,000/s"}},
					Culprit:  f.Subject,
					Cures: []Cure{
						{What: "End the tracer. The process continues, unless the tracer set PTRACE_O_EXITKILL.", Command: fmt.Sprintf("kill %d", f.Subject.Pid)},
						{What: "To observe system calls without stops, use perf trace or a BPF program, or stop at few calls: strace --seccomp-bpf -f -e trace=CALLS PROGRAM."},
					},
				}
				suffers := func(v fact.Subject) { // a container once
					if !slices.ContainsFunc(x.Victims, func(t fact.Subject) bool { return t.Cgroup == v.Cgroup }) {
						x.Victims = append(x.Victims, v)
					}
				}
				for _, t := range tracees[:min(len(tracees), shownTracees)] {
					x.Evidence = append(x.Evidence, Evidence{fmt.Sprintf("runs of its process %d, %s", t.Subject.Pid, t.Subject.Command), perSecond(t.Value), "-"})
					suffers(t.Subject)
				}
				others := harmed(s, f.Subject.Cgroup)
				x.Severity = Notice
				if f.Value > tracerSlows && (foreign || len(others) > 0) {
					x.Severity = Warning
				}
				for _, v := range others {
					suffers(v)
				}
				found = append(found, x)
			}
			return append(found, visits(s, found)...)
		},
	}
}

// visits finds tracers that stop a container's processes at a lower rate than at each system call, such
// as profilers that take samples. Those that are found already are left out.
func visits(s *fact.Set, already []Finding) (found []Finding) {
	for _, f := range s.Of(fact.TracerStops) {
		if f.Value <= tracerVisits || slices.ContainsFunc(already, func(x Finding) bool { return x.Culprit.Pid == f.Subject.Pid }) {
			continue
		}
		stopped := fact.Subject{Cgroup: f.Subject.Device}
		f.Subject.Device = ""
		found = append(found, Finding{
			Severity: Notice, Title: "a tracer stops the processes of a container again and again",
			Evidence: []Evidence{{"stops for the tracer", perSecond(f.Value), "under 20/s"}},
			Culprit:  f.Subject,
			Victims:  []fact.Subject{stopped},
			Cures: []Cure{
				{What: "End the tracer. The process continues, unless the tracer set PTRACE_O_EXITKILL.", Command: fmt.Sprintf("kill %d", f.Subject.Pid)},
				{What: "To take samples without stops, use perf record, holdfast doctor record, or the profiler's mode without stops."},
			},
		})
	}
	return found
}

// traceesOf returns the processes that a tracer stops, and whether one is in a container that is not
// the tracer's.
func traceesOf(s *fact.Set, tracer fact.Subject) (of []fact.Fact, foreign bool) {
	for _, t := range s.Of(fact.Traced) {
		if t.Subject.Device != strconv.Itoa(tracer.Pid) {
			continue
		}
		t.Subject.Device = ""
		of = append(of, t)
		foreign = foreign || t.Subject.Cgroup != tracer.Cgroup && fact.ContainerID(t.Subject.Cgroup) != ""
	}
	return of, foreign
}
