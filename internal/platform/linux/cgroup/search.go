package cgroup

import (
	"fmt"
	"io/fs"
	"path"
)

// Bounds of a Search, far above the numbers of a normal host, so that a search ends
// on a host full of groups.
const (
	maxDepth  = 32
	maxGroups = 500_000
)

// Search walks through the hierarchies and returns the groups whose own name matches.
// It does not search below those. Groups that vanish during the search are no error.
// After another error it also returns the groups found before.
func (ms Mounts) Search(match func(name string) bool) ([]Group, error) {
	var found []Group
	for _, m := range ms {
		err := m.Group("/").Walk(bounded(func(g Group, depth int) error {
			if depth > 0 && match(path.Base(g.Path)) {
				found = append(found, g)
				return fs.SkipDir
			}
			return nil
		}))
		if err != nil {
			return found, fmt.Errorf("search control groups below %s: %w", m.Point, err)
		}
	}
	return found, nil
}

// bounded adds the bounds of a search to visit.
func bounded(visit func(Group, int) error) func(Group, int) error {
	seen := 0
	return func(g Group, depth int) error {
		if seen++; seen > maxGroups || depth > maxDepth {
			return fmt.Errorf("there are too many (%d read, %d levels deep)", seen, depth)
		}
		return visit(g, depth)
	}
}
