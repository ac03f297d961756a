package probe

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"holdfast/internal/hosts/doctor/fact"
)

// stoppedHolders returns the processes that hold a file lock while a signal has stopped them, with the
// number of processes that wait for it, by proc_locks(5). A line with an arrow is a process that waits for the
// lock above it:
//
//	1: FLOCK  ADVISORY  WRITE 1234 fe:00:786 0 EOF
//	1: -> FLOCK  ADVISORY  WRITE 1240 fe:00:786 0 EOF
//
// Locks of processes that the procfs does not show are not in the list.
func stoppedHolders(h Host) map[int]float64 {
	text, _ := read(string(h.Proc) + "/locks") // a kernel may have no locks
	waiting := make(map[int]float64)
	holder := 0
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) > 5 && f[1] == "->" {
			waiting[holder]++
		} else if len(f) > 4 {
			holder, _ = strconv.Atoi(f[4]) // an unexpected line has no holder
		}
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
