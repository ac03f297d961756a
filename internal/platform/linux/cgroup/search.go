package cgroup

import (
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"
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
		s := search{match: match, found: found}
		err := s.below(Group{Point: m.Point, Path: "/", V2: m.V2, Controllers: m.Controllers}, 0)
		found = s.found
		if err := ignoreGone(err); err != nil {
			return found, fmt.Errorf("search control groups below %s: %w", m.Point, err)
		}
	}
	return found, nil
}

type search struct {
	match func(string) bool
	found []Group
	seen  int
}

func (s *search) below(g Group, depth int) error {
	if s.seen++; s.seen > maxGroups || depth > maxDepth {
		return fmt.Errorf("there are too many (%d read, %d levels deep)", s.seen, depth)
	}
	dir := g.Dir()
	// As in walk: a directory with two links has no children.
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil || st.Nlink <= 2 {
		return ignoreGone(err)
	}
	d, err := os.Open(dir)
	if err != nil {
		return ignoreGone(err)
	}
	entries, err := d.ReadDir(-1)
	d.Close()
	if err != nil {
		return ignoreGone(err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		child := g
		child.Path = path.Join(g.Path, e.Name())
		if s.match(e.Name()) {
			s.found = append(s.found, child)
		} else if err := s.below(child, depth+1); err != nil {
			return err
		}
	}
	return nil
}
