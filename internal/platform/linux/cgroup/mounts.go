package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"holdfast/internal/platform/linux/kfile"
	"holdfast/internal/platform/linux/proc"
)

// ErrFormat means that a text of the kernel differs from its manual page.
var ErrFormat = errors.New("unexpected format")

// Mount is one mounted cgroup hierarchy.
type Mount struct {
	Point string // mount point
	Root  string // the cgroup of the hierarchy that is mounted there; usually "/"
	// Base is the path, below the mount, of this cgroup namespace's root, if the
	// mount also shows groups above that root; else "".
	Base        string
	V2          bool     // the unified hierarchy
	Controllers []string // of v1: freezer, pids, memory, …, or name=systemd; sorted
}

// Mounts are the mounted hierarchies, in the kernel's order.
type Mounts []Mount

// Find returns the hierarchies that are mounted for this process.
func Find(p proc.FS) (Mounts, error) {
	b, err := kfile.Read(string(p)+"/self/mountinfo", 16<<20)
	if err != nil {
		return nil, err
	}
	ms, err := ParseMountinfo(b)
	if err != nil {
		return nil, err
	}
	return ms, ms.rebase(p)
}

// ParseMountinfo picks the cgroup mounts out of /proc/pid/mountinfo,
// proc_pid_mountinfo(5). Of a hierarchy mounted twice, the first mount of its
// root counts, else the first.
func ParseMountinfo(b []byte) (Mounts, error) {
	var ms Mounts
	for line := range bytes.Lines(b) {
		front, back, ok := strings.Cut(strings.TrimSuffix(string(line), "\n"), " - ")
		f, g := strings.Fields(front), strings.Fields(back)
		if !ok || len(f) < 6 || len(g) < 2 {
			return nil, fmt.Errorf("mountinfo: %w: %q", ErrFormat, line)
		}
		if g[0] != "cgroup" && g[0] != "cgroup2" {
			continue
		}
		m := Mount{Root: proc.Unescape(f[3]), Point: proc.Unescape(f[4]), V2: g[0] == "cgroup2"}
		if !m.V2 && len(g) > 2 {
			m.Controllers = v1Controllers(g[2])
		}
		ms = ms.with(m)
	}
	return ms, nil
}

func (ms Mounts) with(m Mount) Mounts {
	i := slices.IndexFunc(ms, func(o Mount) bool {
		return o.V2 == m.V2 && slices.Equal(o.Controllers, m.Controllers)
	})
	switch {
	case i < 0:
		return append(ms, m)
	case ms[i].Root != "/" && m.Root == "/":
		ms[i] = m
	}
	return ms
}

// MountedV2 returns the mount point of the version 2 tree. If it is not mounted, the error
// says why it is necessary.
func MountedV2(p proc.FS, why string) (point string, err error) {
	ms, err := Find(p)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(ms, func(m Mount) bool { return m.V2 })
	if i < 0 {
		return "", errors.New(why)
	}
	return ms[i].Point, nil
}

// v1Controllers returns the controllers among the super block's options, which also
// have rw, xattr, release_agent=… and the like.
func v1Controllers(options string) []string {
	var cs []string
	for o := range strings.SplitSeq(options, ",") {
		switch {
		case strings.HasPrefix(o, "name="):
			cs = append(cs, o)
		case o == "rw", o == "ro", o == "xattr", o == "noprefix", o == "clone_children",
			o == "cpuset_v2_mode", o == "favordynmods", o == "nofavordynmods", o == "",
			strings.Contains(o, "="):
		default:
			cs = append(cs, o)
		}
	}
	slices.Sort(cs)
	return cs
}

// Member is one line of /proc/pid/cgroup: the group of a process in a hierarchy.
type Member struct {
	V2          bool
	Controllers []string // sorted
	Path        string   // absolute, from the root of this cgroup namespace
}

// ParseMembers reads /proc/pid/cgroup, cgroups(7).
func ParseMembers(b []byte) ([]Member, error) {
	var ms []Member
	for line := range bytes.Lines(b) {
		id, rest, ok1 := strings.Cut(strings.TrimSuffix(string(line), "\n"), ":")
		controllers, p, ok2 := strings.Cut(rest, ":")
		if !ok1 || !ok2 || !strings.HasPrefix(p, "/") {
			return nil, fmt.Errorf("/proc/pid/cgroup: %w: %q", ErrFormat, line)
		}
		m := Member{V2: id == "0" && controllers == "", Path: strings.TrimSuffix(p, " (deleted)")}
		if controllers != "" {
			m.Controllers = strings.Split(controllers, ",")
			slices.Sort(m.Controllers)
		}
		ms = append(ms, m)
	}
	return ms, nil
}

// Of returns the groups that a process is in: one for each mounted hierarchy in which
// it is visible, the unified one first.
func (ms Mounts) Of(p proc.FS, pid int) ([]Group, error) {
	members, err := ms.Members(p, pid)
	if err != nil {
		return nil, err
	}
	var gs []Group
	for _, mem := range members {
		g, ok := ms.locate(mem)
		switch {
		case !ok:
		case g.V2:
			gs = append([]Group{g}, gs...)
		default:
			gs = append(gs, g)
		}
	}
	return gs, nil
}

// locate finds the directory of a membership. It returns false if the hierarchy is
// not mounted, or the mount does not include the group.
func (ms Mounts) locate(mem Member) (Group, bool) {
	for _, m := range ms {
		if !m.has(mem) {
			continue
		}
		if strings.Contains(mem.Path+"/", "/../") { // outside this cgroup namespace
			return Group{}, false
		}
		rel := path.Clean(mem.Path)
		if m.Root != "/" {
			cut, ok := strings.CutPrefix(rel, m.Root)
			if !ok || (cut != "" && cut[0] != '/') {
				return Group{}, false
			}
			rel = cut
		}
		return m.Group(rel), true
	}
	return Group{}, false
}
