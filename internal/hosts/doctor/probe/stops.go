package probe

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/tracepoint"
)

// stopsProbe counts the signals that stop processes of containers, by the program that sends them, and
// the stops for tracers.
func stopsProbe() Probe {
	types := func(h Host) string { return h.Sys + "/kernel/btf/vmlinux" }
	signals := tallied(func(h Host) (*tracepoint.Tally, error) { return tracepoint.CountStops(types(h)) }, stopFacts)
	traps := tallied(func(h Host) (*tracepoint.Tally, error) { return tracepoint.CountTraps(types(h)) }, trapFacts)
	return Probe{
		Name: "stops", Sees: "programs that stop the processes of a container",
		Gives: []string{fact.StopsSeen, fact.Stops, fact.TracerStops},
		Open:  opened(signals, traps),
	}
}

// trapFacts returns the tracers that stop processes of a container of another group, and that still run.
// A sandbox of gVisor stops its own processes.
func trapFacts(h Host, places []tracepoint.Place, over time.Duration) ([]fact.Fact, error) {
	if !ownPids(h.Proc) {
		return nil, nil // the pids are those of the first namespace
	}
	type stops struct {
		tracer int
		group  string
	}
	found := make(map[stops]fact.Fact)
	for _, p := range places {
		stopped, tracer := processOf(h, p.Pid), processOf(h, int(p.Object))
		if fact.ContainerID(stopped.Cgroup) != "" && stopped.Cgroup != tracer.Cgroup && tracer.Command != "" && !emulates(h, tracer.Pid) {
			of := stops{tracer.Pid, stopped.Cgroup}
			tracer.Device = stopped.Cgroup
			found[of] = fact.Fact{Name: fact.TracerStops, Value: found[of].Value + float64(p.Count)/over.Seconds(), Unit: fact.PerSecond, Subject: tracer}
		}
	}
	return largest(slices.Collect(maps.Values(found)), shownProcesses), nil
}

// stopFacts returns the senders, with the group of the stopped processes as the device. A shell that stops
// its own jobs is in the same group as they are. Senders that have ended, such as kill(1), are one by their
// command; where only v1 has the groups of containers, their own is unknown.
func stopFacts(h Host, places []tracepoint.Place, _ time.Duration) ([]fact.Fact, error) {
	fs := []fact.Fact{host(fact.StopsSeen, 1, fact.Count)}
	if !ownPids(h.Proc) {
		return fs, nil // the pids are those of the first namespace
	}
	r := newResolver(h, nil)
	for _, p := range places {
		stopped := processOf(h, int(p.Object))
		if fact.ContainerID(stopped.Cgroup) == "" {
			continue // of no container, or it has ended
		}
		sender := r.subject(p)
		if _, err := h.Proc.Stat(p.Pid); err != nil { // it has ended
			sender.Pid = 0
		}
		if sender.Cgroup == stopped.Cgroup {
			continue
		}
		sender.Device = stopped.Cgroup
		i := slices.IndexFunc(fs, func(f fact.Fact) bool {
			return f.Name == fact.Stops && f.Subject.Pid == sender.Pid && f.Subject.Command == sender.Command && f.Subject.Device == sender.Device
		})
		if i < 0 {
			fs, i = append(fs, fact.Fact{Name: fact.Stops, Unit: fact.Count, Subject: sender}), len(fs)
		}
		fs[i].Value += float64(p.Count)
	}
	return fs, nil
}

// freezesProbe observes the freezer of each container: freezer.state of cgroup-v1/freezer-subsystem.rst,
// cgroup.events of cgroup-v2.rst.
func freezesProbe() Probe {
	return Probe{
		Name: "freezes", Sees: "containers that are frozen and thawed",
		Gives: []string{fact.Freezes, fact.FrozenShare},
		Open: func(ctx context.Context, h Host, now time.Time) (Series, error) {
			return sampled{sampling(ctx, now, freezesEvery, func() map[string]float64 { return frozenContainers(h) }, nil), freezeFacts}, nil
		},
	}
}

// freezesEvery is the time between two samples. "docker pause" and "docker commit" take about this long.
const freezesEvery = 500 * time.Millisecond

// frozenContainers returns 1 for each container that is frozen, 0 for others.
func frozenContainers(h Host) map[string]float64 {
	frozen := make(map[string]float64)
	for _, m := range h.Groups {
		if !m.V2 && !slices.Contains(m.Controllers, "freezer") {
			continue
		}
		_ = walkContainers(m, func(p, dir string) { // a group that cannot be read is not frozen
			if m.V2 {
				text, err := read(dir + "/cgroup.events")
				if err == nil {
					frozen[p] = max(frozen[p], numbers(text)["frozen"])
				}
				return
			}
			state, err := read(dir + "/freezer.state")
			if err == nil {
				frozen[p] = max(frozen[p], float64(strings.Count(state, "FROZEN")))
			}
		})
	}
	return frozen
}

// freezeFacts counts how often the samples of a container differ from the ones before.
func freezeFacts(samples []levels) (fs []fact.Fact) {
	for p := range samples[len(samples)-1].of {
		changes, frozen := 0.0, 0.0
		for i, s := range samples {
			frozen += s.of[p]
			if i > 0 && s.of[p] != samples[i-1].of[p] {
				changes++
			}
		}
		if changes > 0 {
			of := fact.Subject{Cgroup: p}
			fs = append(fs, fact.Fact{Name: fact.Freezes, Value: changes, Unit: fact.Count, Subject: of},
				fact.Fact{Name: fact.FrozenShare, Value: frozen / float64(len(samples)), Unit: fact.Share, Subject: of})
		}
	}
	return fs
}
