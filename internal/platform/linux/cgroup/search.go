package cgroup

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// maxGroups bounds a search among groups that only root can create. It is far above
	// the number on a normal host.
	maxGroups = 500_000
	// maxEffort bounds the search of one tree in which another user can create groups,
	// in about a microsecond each: 1 for a name, and 10 and its depth for a group that is
	// looked into. It is enough for about 7,000 groups, or for a chain of 400.
	maxEffort = 100_000
	// namesAtOnce is the number of directory entries that are read at once.
	namesAtOnce = 1024
)

// Search walks through the hierarchies and returns the groups that root has created and
// whose own name matches. It does not search below those. Groups that vanish during the
// search are no error. After another error it also returns what it found.
//
// A user with a delegated group can create any number of groups below it, with
// any names and to any depth. Search therefore walks first through the groups that only
// root can write, completely. Then it walks through each delegated tree, the highest
// groups first, until it has spent a fixed effort on that tree. It leaves out groups
// whose path is longer than PATH_MAX, because an engine could not write to them.
func (ms Mounts) Search(match func(name string) bool) ([]Group, error) {
	s := search{match: match}
	for _, m := range ms {
		delegated, complete := s.walk(m.Group("/"), true)
		if !complete {
			s.errs = append(s.errs, fmt.Errorf("search control groups below %s: there are more than %d", m.Point, maxGroups))
		}
		for _, tree := range delegated {
			s.walk(tree, false)
		}
	}
	return s.found, errors.Join(s.errs...)
}

type search struct {
	match  func(name string) bool
	effort int // what is left of it for this walk
	found  []Group
	errs   []error // at most one for each group
}

// walk searches below top, breadth first. If all is to be only root's, it leaves out and
// returns the groups that other users can write.
func (s *search) walk(top Group, onlyRoot bool) (delegated []Group, complete bool) {
	s.effort = maxEffort
	if onlyRoot {
		s.effort = maxGroups
	}
	above := strings.Count(top.Path, "/")
	for queue := []Group{top}; len(queue) > 0; queue = queue[1:] {
		if s.effort <= 0 {
			return delegated, false
		}
		g := queue[0]
		var st unix.Stat_t
		err := unix.Stat(g.Dir(), &st)
		switch {
		case err != nil:
		case onlyRoot && !g.IsRoot() && (st.Uid != 0 || st.Mode&0o022 != 0):
			delegated = append(delegated, g)
			continue
		case st.Nlink == 2: // a directory has a link from each child directory
		default:
			queue, err = s.list(g, queue)
		}
		if err = ignoreUnreachable(err); err != nil {
			s.errs = append(s.errs, fmt.Errorf("search control groups: %s: %w", g.Dir(), err))
		}
		if !onlyRoot {
			s.effort -= 10 + strings.Count(g.Path, "/") - above
		}
	}
	return delegated, true
}

// list matches the groups directly below g and adds the others to the queue.
func (s *search) list(g Group, queue []Group) ([]Group, error) {
	dir, err := os.Open(g.Dir())
	if err != nil {
		return queue, err
	}
	defer dir.Close()
	for s.effort > 0 {
		entries, err := dir.ReadDir(namesAtOnce)
		for _, e := range entries {
			if !e.IsDir() {
				continue
			}
			s.effort--
			child := g
			child.Path = path.Join(g.Path, e.Name())
			if s.match(e.Name()) && child.madeByRoot() {
				s.found = append(s.found, child)
			} else {
				queue = append(queue, child)
			}
		}
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return queue, err
		}
	}
	return queue, nil
}

// madeByRoot reports whether root created the group. The kernel gives each file of a new
// group to its creator (cgroup_kn_set_ugid in kernel/cgroup/cgroup.c). A user cannot give
// a file to root. A delegation changes the owner of the directory, and of none of the
// two files that are read here. A group counts as root's if the file cannot be read.
func (g Group) madeByRoot() bool {
	name := "/notify_on_release"
	if g.V2 {
		name = "/cgroup.events"
	}
	var st unix.Stat_t
	err := unix.Stat(g.Dir()+name, &st)
	return err == nil && st.Uid == 0 || err != nil && ignoreUnreachable(err) != nil
}

// ignoreUnreachable drops the errors of a group that is gone, or whose path is too long.
func ignoreUnreachable(err error) error {
	if errors.Is(err, unix.ENAMETOOLONG) {
		return nil
	}
	return ignoreGone(err)
}
