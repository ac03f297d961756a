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

// left is what dead groups have left below a living one, and what lives there.
type left struct {
	group  cgroup.Group
	pages  int64 // B of page cache that belongs to no group with a directory
	locked int64 // B of it that cannot be reclaimed
	live   int64 // B of page cache of the living, in g and below
	usage  int64 // B, everything
	// dying is how many dead groups there are that have no living one between
	// themselves and g, -1 where the kernel does not count (v1).
	dying int64
}

// worth reports whether a squeeze could free anything that matters.
func (l left) worth() bool {
	return l.pages-l.locked >= least && (l.dying < 0 || l.dying >= leastDying)
}

// leastDying is how many dead groups of v2 there have to be.
const leastDying = 10

// more reports whether the dead below l are the greater evil: by their number where
// it is known.
func (l left) more(than left) bool {
	if l.dying != than.dying {
		return l.dying > than.dying
	}
	return l.pages > than.pages
}

// lookLeft takes the page cache of the living below g from that of all below g:
// the figures of a group contain those of its dead.
func lookLeft(g cgroup.Group) (left, error) {
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
		if len(children) == 0 { // what is its own and what its dead left is one figure
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
	if errors.Is(err, fs.ErrNotExist) { // the root of v2 does not tell
		err = nil
	}
	return l, err
}

// dyingBelow is the count of the dead below a group of v2, -1 where there is none:
// nr_dying_subsys_memory since 6.12, else nr_dying_descendants, cgroup-v2.rst.
func dyingBelow(g cgroup.Group) int64 {
	b, err := kfile.Read(g.Dir()+"/cgroup.stat", 4096)
	if err != nil {
		return -1
	}
	n := cgroup.ParseEvents(b)
	for _, key := range []string{"nr_dying_subsys_memory", "nr_dying_descendants"} {
		if v, ok := n[key]; ok {
			return int64(v)
		}
	}
	return -1
}

// mostLeft finds the group under which the dead have left most. The root of v1,
// which has no limit to lower, counts only as the second return value.
func mostLeft(m cgroup.Mount) (best, root left, err error) {
	n := 0
	var down func(g cgroup.Group, depth int) error
	down = func(g cgroup.Group, depth int) error {
		if n++; n > maxGroups || depth > maxDepth {
			return fmt.Errorf("there are too many control groups (looked at %d)", n)
		}
		l, err := lookLeft(g)
		if err != nil {
			return ignoreGone(err)
		}
		switch {
		case g.IsRoot() && !g.V2:
			root = l
		case best.group.Point == "" || l.more(best):
			best = l
		}
		children, err := g.Children()
		if err != nil {
			return ignoreGone(err)
		}
		for _, c := range children {
			if err := down(c, depth+1); err != nil {
				return err
			}
		}
		return nil
	}
	err = down(m.Group("/"), 0)
	return best, root, err
}

const (
	maxGroups = 50_000
	maxDepth  = 32
)

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// findGroup is the group of a path that somebody gave, in the hierarchy with the
// memory controller. The path may also begin with where that is mounted.
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
