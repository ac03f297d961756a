package profile

import (
	"io/fs"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
)

// groups maps the ids that the kernel adds to samples to control groups. The ids belong
// to the hierarchy with the controller perf_event, which is the unified one if v1 does
// not have the controller. The existing groups are read at the start, and the kernel
// reports new ones, so a container is known even after its removal.
type groups struct {
	paths  map[uint64]string
	ids    map[string]uint64 // of the groups with ids of this package
	mounts cgroup.Mounts
}

const (
	// ownIDs is the first id of this package: the kernel's ids count up from 1.
	ownIDs = 1 << 63
	// maxPaths bounds the number of groups; a host has some thousands.
	maxPaths = 200_000
	rootID   = 1
)

func newGroups(mounts cgroup.Mounts, kernelIDs bool) *groups {
	g := &groups{paths: make(map[uint64]string), ids: make(map[string]uint64), mounts: mounts}
	if kernelIDs {
		g.readTree()
	}
	return g
}

// hierarchy returns the mount to which the kernel's ids belong.
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

// readTree reads the ids of the existing groups: the inodes of their directories. It
// ignores groups that are removed meanwhile.
func (g *groups) readTree() {
	m, ok := g.hierarchy()
	if !ok {
		return
	}
	_ = m.Group("/").Walk(func(group cgroup.Group, _ int) error {
		if len(g.paths) >= maxPaths {
			return fs.SkipAll
		}
		var st unix.Stat_t
		if unix.Stat(group.Dir(), &st) == nil {
			g.add(st.Ino, path.Join("/", m.Root, group.Path))
		}
		return nil
	})
}

// add records a group that the kernel reported.
func (g *groups) add(id uint64, path string) {
	if len(g.paths) < maxPaths {
		g.paths[id] = path
	}
}

// path returns the path of a group by its id, "" if it is unknown.
func (g *groups) path(id uint64) string { return g.paths[id] }

// isRoot reports whether an id does not identify a group: the process is in the root of
// the hierarchy, or the kernel reports no ids.
func (g *groups) isRoot(id uint64) bool { return id == 0 || id == rootID || g.paths[id] == "/" }

// of returns an id for the group of a living process, by procfs: the container, or else
// the longest of its paths, because a process is at the root of a hierarchy that it does
// not use. It returns 0 if the group is unknown.
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
