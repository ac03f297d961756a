package probe

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"holdfast/internal/hosts/doctor/fact"
)

const (
	// zombiesFrom is the number of zombies of the whole host from which they are read again.
	zombiesFrom = 50
	// maxZombies bounds those that are read again, at some 10 µs each.
	maxZombies = 10_000
)

// zombie is a process that has ended and for which its parent has not waited: state Z of
// proc_pid_stat(5). One whose first thread alone has ended has that state, too, and is none.
type zombie struct {
	parent int
	start  uint64 // in ticks
	since  time.Time
}

// zombieFacts counts the zombies that nothing has reaped since the scan: those of a container, and
// outside containers those of a parent. The subject is the parent, the one with most of them.
func zombieFacts(ctx context.Context, h Host, scanned map[int]zombie, now time.Time) (fs []fact.Fact) {
	if len(scanned) < zombiesFrom {
		return nil
	}
	left := make(map[int]float64) // by parent
	n := 0
	over := 0.0
	for _, pid := range slices.Sorted(maps.Keys(scanned)) {
		if n++; n > maxZombies || ctx.Err() != nil {
			break
		}
		z := scanned[pid]
		s, ok := statOf(h, thread{pid, pid})
		if ok && s.State == 'Z' && s.Start == z.start && s.PPid == z.parent {
			left[z.parent]++
			over = now.Sub(z.since).Seconds()
		}
	}
	most := func(a, b int) int { return cmp.Or(cmp.Compare(left[b], left[a]), cmp.Compare(a, b)) }
	containers := make(map[string]int) // the index of the fact of each
	for _, parent := range slices.SortedFunc(maps.Keys(left), most) {
		// The group of a zombie itself is not read: in cgroup v1 it is the root (proc_cgroup_show,
		// kernel/cgroup/cgroup.c).
		s := processOf(h, parent)
		if i, ok := containers[s.Cgroup]; ok {
			fs[i].Value += left[parent]
			continue
		}
		if fact.ContainerID(s.Cgroup) != "" {
			containers[s.Cgroup] = len(fs)
		}
		fs = append(fs, fact.Fact{Name: fact.Zombies, Value: left[parent], Unit: fact.Count, Subject: s, Over: over})
	}
	return largest(fs, shownProcesses)
}
