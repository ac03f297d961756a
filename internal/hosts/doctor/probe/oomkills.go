package probe

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/boottime"
)

// recentKills is the time before an examination in which processes killed for memory are a fact.
const recentKills = 10 * time.Minute

// oomKillsProbe reads from the kernel's log which processes were killed for memory in the last minutes.
// The counters of a container's control group end with the container.
func oomKillsProbe() Probe {
	return Probe{
		Name: "oom kills", Sees: "processes that the kernel has killed for memory in the last minutes", Once: true,
		Gives: []string{fact.OOMKilled, fact.HostOOMKilled},
		Open: moment(func(_ context.Context, h Host) ([]fact.Fact, error) {
			log := wholeKernelLog(h.Kmsg)
			defer log.Close()
			return oomKills(log.records(oomKill), time.Duration(boottime.Now())), nil
		}),
	}
}

// oomKills counts the kills of each control group, with the process of the last one and the seconds since.
func oomKills(records []string, now time.Duration) []fact.Fact {
	type place struct{ name, group string }
	found := make(map[place]fact.Fact)
	for _, r := range records {
		at, f, ok := parseKill(r)
		since := max(0, now-at) // the clock of the log drifts, see drop.process
		if !ok || since > recentKills {
			continue
		}
		p := place{f.Name, f.Subject.Cgroup}
		f.Value, f.Over = found[p].Value+1, since.Seconds()
		found[p] = f
	}
	return largest(slices.Collect(maps.Values(found)), shownProcesses)
}

// oomKill is in each kernelRecord of a kill.
const oomKill = "oom-kill:constraint="

// parseKill reads a kernelRecord of a kill (dump_oom_summary, mm/oom_kill.c, Linux 5.0). The subject is the
// process that was killed. The record is:
//
//	oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/docker/ID,task_memcg=/docker/ID,task=node,pid=25279,uid=0
func parseKill(record string) (at time.Duration, f fact.Fact, ok bool) {
	at, text, ok := kernelRecord(record)
	constraint, rest, found := strings.Cut(strings.TrimPrefix(text, oomKill), ",")
	_, rest, found2 := strings.Cut(rest, ",task_memcg=")
	group, rest, found3 := strings.Cut(rest, ",task=")
	end := strings.LastIndex(rest, ",pid=") // a program may have this in its name
	if !ok || !found || !found2 || !found3 || end < 0 || !strings.HasPrefix(text, oomKill) {
		return 0, f, false
	}
	f = fact.Fact{Name: fact.OOMKilled, Unit: fact.Count, Subject: fact.Subject{Cgroup: fact.UnitGroup(group), Command: rest[:end]}}
	if constraint != "CONSTRAINT_MEMCG" {
		f.Name = fact.HostOOMKilled
	}
	return at, f, true
}
