package profile

import (
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
)

// groups are the control groups by the id that the kernel gives with a sample: that
// in the hierarchy with the controller perf_event, which is the unified one where v1
// does not have it. All that there are at the beginning are read, and the kernel
// tells of each that is made later, so that a container is known also when nothing
// of it is left.
type groups struct {
	paths  map[uint64]string
	ids    map[string]uint64 // of those that we gave ids to
	told   bool              // the kernel tells ids
	mounts cgroup.Mounts
}

const (
	// ownIDs is from where on ids are ours: the kernel's count up from 1.
	ownIDs = 1 << 63
	// maxPaths bounds the groups, of which a host has some thousands.
	maxPaths = 200_000
	rootID   = 1
)

func newGroups(mounts cgroup.Mounts, told bool) *groups {
	g := &groups{paths: make(map[uint64]string), ids: make(map[string]uint64), told: told, mounts: mounts}
	if told {
		g.readTree()
	}
	return g
}

// hierarchy is the mount whose groups the kernel's ids are of.
func (g *groups) hierarchy() (cgroup.Mount, bool) {
	i := slices.IndexFunc(g.mounts, func(m cgroup.Mount) bool { return slices.Contains(m.Controllers, "perf_event") })
	if i < 0 {
		i = slices.IndexFunc(g.mounts, func(m cgroup.Mount) bool { return m.V2 })
	}
	if i < 0 {
		return cgroup.Mount{}, false
	}
	return g.mounts[i], true
}

// readTree reads the ids of the groups that are there: the inodes of their
// directories. Those that vanish meanwhile are no error.
func (g *groups) readTree() {
	m, ok := g.hierarchy()
	if !ok {
		return
	}
	_ = filepath.WalkDir(m.Point, func(dir string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return fs.SkipDir
		case !d.IsDir():
			return nil
		case len(g.paths) >= maxPaths:
			return fs.SkipAll
		}
		var st unix.Stat_t
		if unix.Stat(dir, &st) == nil {
			g.add(st.Ino, path.Join("/", m.Root, strings.TrimPrefix(dir, m.Point)))
		}
		return nil
	})
}

// add notes a group that the kernel told of.
func (g *groups) add(id uint64, path string) {
	if len(g.paths) < maxPaths {
		g.paths[id] = path
	}
}

// path is of a group by its id, "" where it is not known.
func (g *groups) path(id uint64) string { return g.paths[id] }

// isRoot reports whether an id says nothing of who it was: the process is in no
// group of the hierarchy, or the kernel tells no ids.
func (g *groups) isRoot(id uint64) bool { return id == 0 || id == rootID || g.paths[id] == "/" }

// of is an id for where procfs says that a living process is: the container, or the
// longest of its paths, because one is at the root where a controller is not used.
// 0 where that is not known.
func (g *groups) of(p proc.FS, pid int) uint64 {
	members, err := g.mounts.Members(p, pid)
	if err != nil {
		return 0
	}
	best := "/"
	for _, m := range members {
		if isContainer(m.Path) {
			best = m.Path
			break
		}
		if len(m.Path) > len(best) && !strings.HasPrefix(m.Path, "/..") {
			best = m.Path
		}
	}
	id, ok := g.ids[best]
	if !ok {
		id = ownIDs + uint64(len(g.ids))
		g.ids[best] = id
		g.add(id, best)
	}
	return id
}
