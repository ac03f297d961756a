package kill

import (
	"slices"
	"strings"

	"holdfast/internal/platform/linux/cgroup"
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
