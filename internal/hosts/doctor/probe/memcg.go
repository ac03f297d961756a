package probe

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/cgroup"
)

// memcgProbe counts dying memory cgroups: those that are removed and still held by their
// pages.
func memcgProbe() Probe {
	return Probe{
		Name: "memcg", Sees: "dying memory cgroups", Once: true,
		Gives: []string{fact.MemcgVersion, fact.MemcgCounted, fact.MemcgLiving, fact.MemcgDying, fact.MemcgUnder},
		Open:  moment(readMemcg),
	}
}

var errPartial = errors.New("only a part of the control groups is mounted, so dying groups cannot be distinguished from groups outside of it")

func readMemcg(_ context.Context, h Host) ([]fact.Fact, error) {
	m, ok := h.Groups.Memory()
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
	var into func(g cgroup.Group, dying float64)
	into = func(g cgroup.Group, dying float64) {
		own := dying
		children, _ := g.Children() // a removed group has no children
		for _, c := range children {
			if visited++; visited > maxGroups {
				break
			}
			text, err := read(c.Dir() + "/cgroup.stat")
			if n, ok := dyingBelow(text); err == nil && ok && n > 0 {
				own -= n
				into(c, n)
			}
		}
		if own > 0 {
			fs = append(fs, fact.Fact{Name: fact.MemcgUnder, Value: own, Subject: fact.Subject{Cgroup: g.Path}})
		}
	}
	into(m.Group("/"), all)
	return largest(fs, shownPins)
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

// countDirs counts a directory and all below it.
func countDirs(root string) (float64, error) {
	n := 0.0
	err := walkGroups(root, func(string, fs.DirEntry) error {
		if n++; n > maxDirs {
			return fmt.Errorf("there are more than %d control groups", maxDirs)
		}
		return nil
	})
	return n, err
}
