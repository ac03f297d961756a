package cure

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"holdfast"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/kfile"
)

// left has the memory that dying groups keep below a living group, and the figures of the
// living groups there.
type left struct {
	group  cgroup.Group
	pages  int64 // B of page cache that belongs to groups without a directory
	locked int64 // B of it that cannot be reclaimed
	live   int64 // B of page cache of living groups, in g and below
	usage  int64 // B in total
	// dying is the number of dying groups without a living group between themselves and
	// g, -1 if the kernel does not count them (v1).
	dying int64
}

// worth reports whether a squeeze could free a significant amount.
func (l left) worth() bool {
	return l.pages-l.locked >= least && (l.dying < 0 || l.dying >= leastDying)
}

// leastDying is the minimum number of dying groups on v2.
const leastDying = 10

// more reports whether l needs a squeeze more than other, by the number of dying groups if
// it is known.
func (l left) more(other left) bool {
	if l.dying != other.dying {
		return l.dying > other.dying
	}
	return l.pages > other.pages
}

// readLeft subtracts the page cache of the living groups below g from that of all groups
// below g: the figures of a group include those of its dying descendants.
func readLeft(g cgroup.Group) (left, error) {
	l := left{group: g, dying: -1}
	all, err := g.MemoryStat()
	if err != nil {
		return l, err
	}
	children, err := g.Children()
	if err != nil {
		return l, err
	}
	key := func(s string) string {
		if g.V2 {
			return strings.Replace(s, "cache", "file", 1)
		}
		return "total_" + s
	}
	cache, locked := all[key("cache")], all[key("unevictable")]
	if g.V2 {
		l.dying = dyingBelow(g)
		if len(children) == 0 { // its own pages and those of its dying descendants are one figure
			l.live = cache
			return l, nil
		}
	} else {
		cache, locked, l.live = cache-all["cache"], locked-all["unevictable"], all["cache"]
	}
	for _, c := range children {
		s, err := c.MemoryStat()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return l, err
		}
		if l.dying >= 0 {
			l.dying -= max(0, dyingBelow(c))
		}
		cache -= s[key("cache")]
		locked -= s[key("unevictable")]
		l.live += s[key("cache")]
	}
	l.pages = max(0, cache)
	l.locked = min(max(0, locked), l.pages)
	l.usage, err = g.MemoryUsage()
	if errors.Is(err, fs.ErrNotExist) { // the root of v2 has no such file
		err = nil
	}
	return l, err
}

// dyingBelow returns the number of dying groups below a v2 group, -1 if it is unknown:
// nr_dying_subsys_memory since Linux 6.12, or else nr_dying_descendants, cgroup-v2.rst.
func dyingBelow(g cgroup.Group) int64 {
	b, err := kfile.Read(g.Dir()+"/cgroup.stat", 4096)
	if err != nil {
		return -1
	}
	n := cgroup.ParseEvents(b)
	for _, key := range []string{"nr_dying_subsys_memory", "nr_dying_descendants"} {
		if v, ok := n[key]; ok {
			return v
		}
	}
	return -1
}

// mostLeft returns the group below which dying groups keep most memory. It never returns the
// root of v1 as best, because that has no limit to lower.
func mostLeft(m cgroup.Mount) (best, root left, err error) {
	err = m.Group("/").Walk(bounded(func(g cgroup.Group) error {
		l, err := readLeft(g)
		switch {
		case err != nil:
			return err
		case g.IsRoot() && !g.V2:
			root = l
		case best.group.Point == "" || l.more(best):
			best = l
		}
		return nil
	}))
	return best, root, err
}

const (
	maxGroups = 50_000
	maxDepth  = 32
)

// bounded adds these bounds to visit.
func bounded(visit func(cgroup.Group) error) func(cgroup.Group, int) error {
	n := 0
	return func(g cgroup.Group, depth int) error {
		if n++; n > maxGroups || depth > maxDepth {
			return fmt.Errorf("there are too many control groups (over %d)", n)
		}
		return visit(g)
	}
}

// findGroup returns the group of a path in the hierarchy with the memory controller. The
// path may also begin with the mount point.
func findGroup(h probe.Host, given string) (cgroup.Group, error) {
	m, ok := h.Groups.Memory()
	if !ok {
		return cgroup.Group{}, errNoMemory
	}
	p := path.Clean("/" + strings.TrimPrefix(given, m.Point))
	g := m.Group(p)
	if _, err := g.MemoryStat(); errors.Is(err, fs.ErrNotExist) {
		return g, holdfast.WithHint(fmt.Errorf("control group %s: %w", given, holdfast.ErrNotFound), "its path below "+m.Point+", such as /docker")
	} else if err != nil {
		return g, err
	}
	return g, nil
}
