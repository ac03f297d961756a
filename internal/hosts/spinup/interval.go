package spinup

import (
	"slices"
	"sort"
	"time"
)

// interval is a piece of time since the pull began; from ≤ to.
type interval struct{ from, to time.Duration }

// union returns the time that at least one of the intervals covers.
func union(list []interval) time.Duration {
	sorted := slices.Clone(list)
	sort.Slice(sorted, func(i, j int) bool { return sorted[i].from < sorted[j].from })
	var all, end time.Duration
	for _, i := range sorted {
		from := max(i.from, end)
		if i.to > from {
			all += i.to - from
		}
		end = max(end, i.to)
	}
	return all
}

// sum returns the total of the lengths of the intervals.
func sum(list []interval) time.Duration {
	var all time.Duration
	for _, i := range list {
		all += i.to - i.from
	}
	return all
}
