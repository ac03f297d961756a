package probe

import (
	"cmp"
	"context"
	"path"
	"slices"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/tracepoint"
)

// removalsProbe counts the removed control groups and those that the kernel has
// released. Removed groups that are not released are dying groups, held by their pages.
// On v1, where the kernel does not count them, it also counts by parent the groups that
// are not released.
func removalsProbe() Probe {
	return Probe{
		Name: "removals", Sees: "rate of removed control groups, and the parents of those that are not released",
		Gives: []string{fact.GroupsRemoved, fact.GroupsReleased, fact.MemcgLeft},
		Open: func(_ context.Context, h Host, now time.Time) (Series, error) {
			r, err := tracepoint.CountRemovals()
			if err != nil {
				return nil, traceError(err)
			}
			return &removalSeries{host: h, removals: r, at: now}, nil
		},
	}
}

type removalSeries struct {
	host     Host
	removals *tracepoint.Removals
	at       time.Time

	removed, released uint64 // counters at that time
}

func (r *removalSeries) Read(_ context.Context, now time.Time) ([]fact.Fact, error) {
	removed, released, err := r.removals.Totals()
	if err != nil {
		return nil, err
	}
	over := now.Sub(r.at)
	if over <= 0 {
		return nil, nil
	}
	fs := []fact.Fact{
		host(fact.GroupsRemoved, float64(removed-r.removed)/over.Seconds(), fact.PerSecond),
		host(fact.GroupsReleased, float64(released-r.released)/over.Seconds(), fact.PerSecond),
	}
	r.at, r.removed, r.released = now, removed, released
	left, err := r.left()
	return append(fs, left...), err
}

// leftFrom is the number of unreleased groups from which their parents are determined,
// which requires a walk over the living groups.
const leftFrom = 100

// left returns the living groups or containers with the most unreleased groups below
// them: the count below each group minus the counts below its children.
func (r *removalSeries) left() ([]fact.Fact, error) {
	left, err := r.removals.Left()
	// Most counts are of the root. Groups that died before the tracepoints were attached
	// reduce the root's count when they are released.
	all := uint64(0)
	for _, n := range left {
		all = max(all, n)
	}
	m, ok := r.host.Groups.Memory()
	if err != nil || all < leftFrom || !ok || m.V2 || !wholeTree(m) {
		return nil, err
	}
	living := make(map[uint64]bool)
	own := make(map[string]int64)
	for _, p := range inodes(m) {
		key := tracepoint.Above(p)
		living[key] = true
		if n := int64(left[key]); n > 0 {
			own[Unit(p)] += n
			if p != "/" {
				own[Unit(path.Dir(p))] -= n
			}
		}
	}
	fs := []fact.Fact{host(fact.MemcgLeft, float64(all), fact.Count)}
	var under []fact.Fact
	for p, n := range own {
		if n > 0 {
			under = append(under, fact.Fact{Name: fact.MemcgLeft, Value: float64(n), Unit: fact.Count, Subject: fact.Subject{Cgroup: p}})
		}
	}
	slices.SortFunc(under, func(a, b fact.Fact) int {
		return cmp.Or(cmp.Compare(b.Value, a.Value), cmp.Compare(a.Subject.Cgroup, b.Subject.Cgroup))
	})
	return append(fs, under[:min(len(under), shownPins)]...), r.removals.Forget(left, living)
}

func (r *removalSeries) Close() error { return r.removals.Close() }
