package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/kfile"
	"holdfast/internal/platform/linux/proc"
)

// In a cgroup namespace, cgroup_namespaces(7), the kernel shows all paths in /proc
// from the namespace's root: those of groups outside it begin with "/..", and so does
// the root of a mount that includes groups above. A container runtime gives each
// container a namespace on v2. The kernel does not report the namespace's root; it is
// found by searching for this process.

// above is the number of levels by which the root of a mount lies above the
// namespace's root.
func (m Mount) above() int {
	n := strings.Count(m.Root, "/..")
	if m.Root != strings.Repeat("/..", n) {
		return 0
	}
	return n
}

// rebase finds the Base of the mounts that include groups above this namespace. From
// then on such a mount's own root counts as its root. A mount in which this process
// cannot be found stays as it is.
func (ms Mounts) rebase(p proc.FS) error {
	if !slices.ContainsFunc(ms, func(m Mount) bool { return m.above() > 0 }) {
		return nil
	}
	b, err := kfile.Read(string(p)+"/self/cgroup", 1<<20)
	if err != nil {
		return err
	}
	own, err := ParseMembers(b)
	if err != nil {
		return err
	}
	for i, m := range ms {
		j := slices.IndexFunc(own, m.has)
		if m.above() == 0 || j < 0 {
			continue
		}
		base, err := m.base(own[j].Path)
		if err != nil {
			return fmt.Errorf("find the group of this process below %s: %w", m.Point, err)
		}
		if base != "" {
			ms[i].Root, ms[i].Base = "/", base
		}
	}
	return nil
}

// has reports whether a membership is in the mount's hierarchy.
func (m Mount) has(mem Member) bool {
	return m.V2 == mem.V2 && slices.Equal(m.Controllers, mem.Controllers)
}

// base finds the group, at the depth of the namespace's root below the mount, in
// which this process is at its own path. It returns "" if there is none.
func (m Mount) base(own string) (base string, err error) {
	seen := 0
	err = m.Group("/").Walk(func(g Group, depth int) error {
		if seen++; seen > maxGroups {
			return fmt.Errorf("there are more than %d", maxGroups)
		}
		if depth < m.above() {
			return nil
		}
		b, err := kfile.Read(path.Join(g.Dir(), own, "cgroup.procs"), maxProcs)
		if errors.Is(err, unix.EOPNOTSUPP) { // a threaded group
			return fs.SkipDir
		} else if err != nil {
			return err
		}
		pids, err := ParseProcs(b)
		switch {
		case err != nil:
			return err
		case slices.Contains(pids, os.Getpid()):
			base = g.Path
			return fs.SkipAll
		}
		return fs.SkipDir
	})
	return base, err
}

// Members reads the groups of a process. If a mount includes groups above this cgroup
// namespace, the path is that below the mount.
func (ms Mounts) Members(p proc.FS, pid int) ([]Member, error) {
	b, err := p.Cgroup(pid)
	if err != nil {
		return nil, err
	}
	members, err := ParseMembers(b)
	for i, mem := range members {
		if j := slices.IndexFunc(ms, func(m Mount) bool { return m.Base != "" && m.has(mem) }); j >= 0 {
			members[i].Path = path.Join(ms[j].Base, mem.Path)
		}
	}
	return members, err
}
