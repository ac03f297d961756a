package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/cgroup"
)

// memcgProbe counts dying memory cgroups: those that are removed and still held by their
// pages.
func memcgProbe() Probe {
	return Probe{
		Name: "memcg", Sees: "dying memory cgroups", Once: true,
		Gives: []string{fact.MemcgVersion, fact.MemcgCounted, fact.MemcgLiving, fact.MemcgDying, fact.MemcgUnder},
		Start: func(_ context.Context, h Host) (Finish, error) {
			return func(context.Context, time.Duration) ([]fact.Fact, error) { return readMemcg(h) }, nil
		},
	}
}

var errPartial = errors.New("only a part of the control groups is mounted, so dying groups cannot be distinguished from groups outside of it")

func readMemcg(h Host) ([]fact.Fact, error) {
	m, ok := memoryMount(h)
	if !ok {
		return nil, errors.New("no hierarchy with the memory controller is mounted")
	}
	if !wholeTree(m) {
		return nil, errPartial
	}
	if m.V2 {
		return memcgV2(m)
	}
	return memcgV1(h, m)
}

// memoryMount returns the hierarchy with the memory controller.
func memoryMount(h Host) (cgroup.Mount, bool) {
	for _, m := range h.Groups {
		if !m.V2 && (cgroup.Group{Controllers: m.Controllers}).Has("memory") {
			return m, true
		}
	}
	for _, m := range h.Groups {
		if text, err := read(m.Point + "/cgroup.controllers"); m.V2 && err == nil && hasWord(text, "memory") {
			return m, true
		}
	}
	return cgroup.Mount{}, false
}

func hasWord(text, word string) bool {
	for w := range strings.FieldsSeq(text) {
		if w == word {
			return true
		}
	}
	return false
}

// wholeTree reports whether the mount shows the real root of its hierarchy instead of
// that of a cgroup namespace. On v1 only the real root has release_agent; on v2 every
// group except the real root has cgroup.type (kernel/cgroup/cgroup.c).
func wholeTree(m cgroup.Mount) bool {
	if m.Root != "/" {
		return false
	}
	if m.V2 {
		_, err := os.Lstat(m.Point + "/cgroup.type")
		return errors.Is(err, fs.ErrNotExist)
	}
	_, err := os.Lstat(m.Point + "/release_agent")
	return err == nil
}

// memcgV1 compares the kernel's count with the directories.
func memcgV1(h Host, m cgroup.Mount) ([]fact.Fact, error) {
	text, err := read(string(h.Proc) + "/cgroups")
	if err != nil {
		return nil, err
	}
	counted := -1.0
	for line := range strings.Lines(text) {
		// memory	4	1969	1: name, hierarchy, number, enabled, cgroups(7)
		if f := strings.Fields(line); len(f) == 4 && f[0] == "memory" {
			if counted, err = strconv.ParseFloat(f[2], 64); err != nil {
				return nil, fmt.Errorf("/proc/cgroups: %w", err)
			}
		}
	}
	if counted < 0 {
		return nil, errors.New("/proc/cgroups does not list the memory controller")
	}
	living, err := countDirs(m.Point)
	if err != nil {
		return nil, err
	}
	return memcgFacts(1, counted, living), nil
}

// memcgV2 reads the root's count of dying groups below it: nr_dying_subsys_memory since
// Linux 6.12, or else nr_dying_descendants, Documentation/admin-guide/cgroup-v2.rst.
func memcgV2(m cgroup.Mount) ([]fact.Fact, error) {
	text, err := read(m.Point + "/cgroup.stat")
	if err != nil {
		return nil, err
	}
	dying, ok := dyingBelow(text)
	if !ok {
		return nil, errors.New("cgroup.stat does not count dying groups (Linux 4.14 does)")
	}
	living, err := countDirs(m.Point)
	if err != nil {
		return nil, err
	}
	return append(memcgFacts(2, living+dying, living), dyingUnder(m, dying)...), nil
}

// dyingBelow returns the number of dying groups at any depth below a group, by its
// cgroup.stat.
func dyingBelow(stat string) (float64, bool) {
	n := numbers(stat)
	if v, ok := n["nr_dying_subsys_memory"]; ok {
		return v, true
	}
	v, ok := n["nr_dying_descendants"]
	return v, ok
}

// dyingUnder returns the living groups with the most dying groups directly below them:
// the count of each group minus the counts of its children. Only groups with dying ones
// below are visited.
func dyingUnder(m cgroup.Mount, all float64) []fact.Fact {
	var fs []fact.Fact
	visited := 0
	var into func(dir string, dying float64)
	into = func(dir string, dying float64) {
		own := dying
		entries, _ := os.ReadDir(dir) // a removed group has no entries
		for _, e := range entries {
			if !e.IsDir() || visited >= maxGroups {
				continue
			}
			visited++
			text, err := read(dir + "/" + e.Name() + "/cgroup.stat")
			if n, ok := dyingBelow(text); err == nil && ok && n > 0 {
				own -= n
				into(dir+"/"+e.Name(), n)
			}
		}
		if own > 0 {
			fs = append(fs, fact.Fact{Name: fact.MemcgUnder, Value: own, Subject: fact.Subject{Cgroup: path.Join("/", strings.TrimPrefix(dir, m.Point))}})
		}
	}
	into(m.Point, all)
	slices.SortStableFunc(fs, func(a, b fact.Fact) int { return cmp.Compare(b.Value, a.Value) })
	return fs[:min(len(fs), shownPins)]
}

func memcgFacts(version, counted, living float64) []fact.Fact {
	return []fact.Fact{
		host(fact.MemcgVersion, version, fact.Count),
		host(fact.MemcgCounted, counted, fact.Count),
		host(fact.MemcgLiving, living, fact.Count),
		// Groups are made and removed while the directories are counted.
		host(fact.MemcgDying, max(0, counted-living), fact.Count),
	}
}

// maxDirs is far above what a host has: about 10 a container.
const maxDirs = 500_000

// isLeaf reports whether a directory has none in it, which spares the reading of
// its files' names: the kernel counts two links, and one for each directory in it
// (kernfs_refresh_inode, fs/kernfs/inode.c). Where a file system counts otherwise,
// none is a leaf.
func isLeaf(d fs.DirEntry) bool {
	info, err := d.Info()
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Nlink == 2
}

// countDirs counts a directory and all below it.
func countDirs(root string) (float64, error) {
	n := 0.0
	err := filepath.WalkDir(root, func(dir string, d fs.DirEntry, err error) error {
		switch {
		case err != nil && dir == root:
			return err
		case err != nil: // it has gone meanwhile
			return fs.SkipDir
		case !d.IsDir():
			return nil
		}
		if n++; n > maxDirs {
			return fmt.Errorf("there are more than %d control groups", maxDirs)
		}
		if isLeaf(d) {
			return fs.SkipDir
		}
		return nil
	})
	return n, err
}
