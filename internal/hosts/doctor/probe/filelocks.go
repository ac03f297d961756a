package probe

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/hosts/doctor/fact"
)

// blockedLocks returns the processes that hold a file lock for which others wait, and those that wait, by
// proc_locks(5). A line with an arrow is a process that waits for the lock above it:
//
//	1: FLOCK  ADVISORY  WRITE 1234 fe:00:786 0 EOF
//	1: -> FLOCK  ADVISORY  WRITE 1240 fe:00:786 0 EOF
//
// Locks of processes that the procfs does not show are not in the list. A lock of an open file
// description (fcntl(2), F_OFD_SETLK) has no process.
func blockedLocks(h Host) map[int][]int {
	text, _ := read(string(h.Proc) + "/locks") // a kernel may have no locks
	waiting := make(map[int][]int)
	holder := 0
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) > 5 && f[1] == "->" {
			pid, _ := strconv.Atoi(f[5]) // 0 in an unexpected line
			waiting[holder] = append(waiting[holder], pid)
		} else if len(f) > 4 {
			holder, _ = strconv.Atoi(f[4]) // an unexpected line has no holder
		}
	}
	return waiting
}

// fileLocksProbe looks once a second whether containers wait for file locks of other control groups, and
// whether processes wait for each other's. The kernel finds such a cycle of POSIX locks only (fcntl(2),
// EDEADLK).
func fileLocksProbe() Probe {
	return Probe{
		Name: "file locks", Sees: "containers that wait for file locks that other containers or the host hold, and deadlocks",
		Gives: []string{fact.LockWaits, fact.LockCycle},
		Open: func(ctx context.Context, h Host, now time.Time) (Series, error) {
			return sampled{sampling(ctx, now, time.Second, func() map[string]float64 { return waitsForOthers(h) }, nil),
				func(samples []levels) []fact.Fact { return lockWaitFacts(h, samples) }}, nil
		},
	}
}

// waitsForOthers has an amount for each holder of a lock and container of another group that waits for it,
// and one for each holder that is in a cycle.
func waitsForOthers(h Host) map[string]float64 {
	waits := make(map[string]float64)
	locks := blockedLocks(h)
	for holder, pids := range locks {
		by, known := groupOf(h, holder)
		for _, pid := range pids {
			if group, ok := groupOf(h, pid); known && ok && group != by && fact.ContainerID(group) != "" {
				waits[strconv.Itoa(holder)+" "+group] = 1
			}
		}
		if n := cycle(locks, holder); n > 0 {
			waits[strconv.Itoa(holder)+lockCycle] = n
		}
	}
	return waits
}

// lockCycle follows the pid in the name of an amount about a process of a cycle.
const lockCycle = " cycle"

// cycle returns the length of a cycle of processes that wait for each other and has this one, 0 without one.
// Locks without a process, whose pid is negative, may be those of many programs: they are in none.
func cycle(locks map[int][]int, pid int) float64 {
	from := map[int]float64{pid: 1}
	for next := []int{pid}; len(next) > 0; next = next[1:] {
		for _, waiter := range locks[next[0]] { // it waits for a lock of next[0]
			if waiter == pid && next[0] != pid {
				return from[next[0]]
			}
			if from[waiter] == 0 && waiter > 0 {
				from[waiter] = from[next[0]] + 1
				next = append(next, waiter)
			}
		}
	}
	return 0
}

// lockWaitFacts returns for which share of the samples a container waited for a holder that still runs,
// and the cycles that were there in the first sample and in the last, one for each group.
func lockWaitFacts(h Host, samples []levels) (fs []fact.Fact) {
	waits := make(map[string]float64)
	for _, l := range samples {
		for key := range l.of {
			waits[key] += 1 / float64(len(samples))
		}
	}
	first, last := samples[0].of, samples[len(samples)-1].of
	groups := make(map[string]bool) // with a cycle
	for _, key := range slices.Sorted(maps.Keys(waits)) {
		name, isCycle := strings.CutSuffix(key, lockCycle)
		holder, group, _ := strings.Cut(name, " ")
		pid, _ := strconv.Atoi(holder) // waitsForOthers has made it
		s := processOf(h, pid)
		switch {
		case s.Command == "": // it has ended
		case !isCycle:
			s.Device = group
			fs = append(fs, fact.Fact{Name: fact.LockWaits, Value: waits[key], Unit: fact.Share, Subject: s})
		case first[key] > 0 && last[key] > 0 && !groups[s.Cgroup]:
			groups[s.Cgroup] = true
			fs = append(fs, fact.Fact{Name: fact.LockCycle, Value: last[key], Unit: fact.Count, Subject: s})
		}
	}
	return fs
}

// stoppedHolders returns the processes that hold a file lock while a signal has stopped them, with the
// number of processes that wait for it.
func stoppedHolders(h Host) map[int]float64 {
	waiting := make(map[int]float64)
	for pid, waiters := range blockedLocks(h) {
		waiting[pid] = float64(len(waiters))
	}
	maps.DeleteFunc(waiting, func(pid int, _ float64) bool {
		st, err := h.Proc.Stat(pid)
		return err != nil || st.State != 'T'
	})
	return waiting
}

// holderFacts returns the holders that were stopped at both ends, with the smaller number of those that
// waited.
func holderFacts(h Host, before, after map[int]float64) (fs []fact.Fact) {
	for _, pid := range slices.Sorted(maps.Keys(after)) {
		if was, ok := before[pid]; ok {
			fs = append(fs, fact.Fact{Name: fact.LockHeld, Value: min(was, after[pid]), Unit: fact.Count, Subject: processOf(h, pid)})
		}
	}
	return fs
}
