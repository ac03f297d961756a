package probe

import (
	"cmp"
	"context"
	"path"
	"sort"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/tracepoint"
)

// removalsProbe counts the removed control groups and those that the kernel has
// released. Removed groups that are not released are dying groups, held by their pages.
// On v1 the kernel does not count them; there the probe also counts, by parent, the groups
// that are not released.
func removalsProbe() Probe {
	return Probe{
		Name: "removals", Sees: "rate of removed control groups, and the parents of those that are not released",
		Gives: []string{fact.GroupsRemoved, fact.GroupsReleased, fact.MemcgLeft},
		Open: func(_ context.Context, h Host, now time.Time) (Series, error) {
			r, err := tracepoint.CountRemovals()
			if err != nil {
				return nil, traceError(err)
			}
			return &counting[removalTotals]{host: h, at: now, closer: r,
				read: func(context.Context, Host) (removalTotals, error) {
					removed, released, err := r.Totals()
					return removalTotals{removed, released}, err
				},
				facts: func(h Host, before, after removalTotals, over time.Duration) ([]fact.Fact, error) {
					left, err := leftGroups(h, r)
					return append(left,
						host(fact.GroupsRemoved, float64(after.removed-before.removed)/over.Seconds(), fact.PerSecond),
						host(fact.GroupsReleased, float64(after.released-before.released)/over.Seconds(), fact.PerSecond)), err
				},
			}, nil
		},
	}
}

// removalTotals holds the numbers of groups since the tracepoints were attached.
type removalTotals struct {
	removed, released uint64
}

// leftFrom is the number of unreleased groups from which their parents are determined,
// which requires a walk over the living groups.
const leftFrom = 100

// leftGroups returns the living groups or containers with the most unreleased groups below
// them: the count below each group minus the counts below its children.
func leftGroups(h Host, r *tracepoint.Removals) ([]fact.Fact, error) {
	left, err := r.Left()
	// Most counts are of the root. Groups that died before the tracepoints were attached
	// reduce the root's count when they are released.
	all := uint64(0)
	for _, n := range left {
		all = max(all, n)
	}
	m, ok := h.Groups.Memory()
	if err != nil || all < leftFrom || !ok || m.V2 || !wholeTree(m) {
		return nil, err
	}
	living := make(map[uint64]bool)
	own := make(map[string]int64)
	for _, p := range inodes(m) {
		key := tracepoint.Above(p)
		living[key] = true
		if n := int64(left[key]); n > 0 {
			own[fact.UnitGroup(p)] += n
			if p != "/" {
				own[fact.UnitGroup(path.Dir(p))] -= n
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
	sort.Slice(under, func(i, j int) bool {
		a, b := &under[i], &under[j]
		return cmp.Or(cmp.Compare(b.Value, a.Value), cmp.Compare(a.Subject.Cgroup, b.Subject.Cgroup)) < 0
	})
	return append(fs, under[:min(len(under), shownPins)]...), r.Forget(left, living)
}
