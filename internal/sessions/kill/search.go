package kill

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
)

// Searchable reports whether a container of this id can be found by its control group
// alone: lower-case hex digits, as Docker and Kubernetes make ids, so that no other
// group on the host has that name.
func Searchable(id string) bool {
	return len(id) >= minIDLen && strings.Trim(id, "0123456789abcdef") == ""
}

// Search finds the control groups of containers by their ids alone, for example of a
// container that the engine is about to start and whose init cannot be opened yet. It
// returns the groups by id. It leaves out ids that are not Searchable, that have no
// group, or that this process is in. It walks through the groups of the host as
// cgroup.Mounts.Search does: groups that another user has created, with the name of a
// container, are not found. After an error it also returns what it found.
func (o *Opener) Search(ids []string) (map[string][]cgroup.Group, error) {
	ids = slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return !Searchable(id) })
	if len(ids) == 0 {
		return nil, nil
	}
	var where cgroup.Mounts
	for _, m := range o.mounts {
		if m.V2 || slices.Contains(m.Controllers, "freezer") { // as in wanted
			where = append(where, m)
		}
	}
	idOf := func(name string) string {
		for _, id := range ids {
			if strings.Contains(name, id) {
				return id
			}
		}
		return ""
	}
	groups, err := where.Search(func(name string) bool { return idOf(name) != "" })
	found := make(map[string][]cgroup.Group)
	for _, g := range groups {
		if slices.ContainsFunc(o.own, g.Contains) {
			continue
		}
		id := idOf(g.Path[strings.LastIndexByte(g.Path, '/')+1:])
		found[id] = append(found[id], g)
	}
	return found, err
}

// Starting reports whether a process of the container's runtime, or a hook of its start,
// still runs: one that has the id among its arguments and is no shim. It may start the
// container although its engine has ended. An id that is not Searchable is not starting.
func Starting(id string) (bool, error) {
	if !Searchable(id) {
		return false, nil
	}
	pids, err := proc.Host.Pids()
	if err != nil {
		return false, fmt.Errorf("look for the start of container %s: %w", id, err)
	}
	for _, pid := range pids {
		argv, err := proc.Host.Cmdline(pid)
		if err != nil || len(argv) == 0 || strings.Contains(filepath.Base(argv[0]), "shim") {
			continue // it has ended, or is a thread of the kernel
		}
		if slices.ContainsFunc(argv, func(arg string) bool { return strings.Contains(arg, id) }) {
			return true, nil
		}
	}
	return false, nil
}
