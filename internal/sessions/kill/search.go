package kill

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/platform/tasks"
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
	ids = searchable(ids)
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

// SeeDead sees containers dead that the engine has removed, or does not know. It returns
// the reason, by id, for each one that is not seen dead.
//
// An engine that ends within a start leaves it to the container's shim and runtime. The
// next one does not know that the container runs, and its removal kills nothing. So
// SeeDead waits until no runtime starts one of them, for startTimeout at most, then kills
// the processes in their control groups until these are empty, for seeTimeout at most.
// Containers whose ids are not Searchable count as dead. Any goroutine may call it.
func (o *Opener) SeeDead(ctx context.Context, ids []string) map[string]error {
	left := map[string]error{}
	groups, err := o.settled(ctx, ids)
	if err != nil {
		for _, id := range ids {
			left[id] = err
		}
		return left
	}
	end := time.Now().Add(seeTimeout)
	for {
		clear(left)
		for id, its := range groups {
			for _, g := range its {
				if empty, err := g.Empty(); err != nil || !empty {
					left[id] = errors.Join(left[id], fmt.Errorf("processes run in %s", g.Dir()), err, g.Kill())
				}
			}
		}
		if len(left) == 0 || time.Now().After(end) || tasks.Sleep(ctx, seeEvery) != nil {
			return left
		}
	}
}

const (
	startTimeout = 10 * time.Second // after it another program has the id among its arguments
	seeTimeout   = 10 * time.Second
	seeEvery     = 20 * time.Millisecond
)

// settled returns the control groups of containers once no runtime starts one of them.
func (o *Opener) settled(ctx context.Context, ids []string) (map[string][]cgroup.Group, error) {
	end := time.Now().Add(startTimeout)
	for {
		starting, err := Starting(ids)
		if err != nil {
			return nil, err
		}
		if !starting || time.Now().After(end) {
			return o.Search(ids)
		}
		if err := tasks.Sleep(ctx, seeEvery); err != nil {
			return nil, fmt.Errorf("wait for the runtime of a container: %w", err)
		}
	}
}

// Starting reports whether a process of a container's runtime, or a hook of its start,
// still runs: one that has one of the ids among its arguments and is no shim. It may
// start the container although its engine has ended. An id that is not Searchable is not
// starting.
func Starting(ids []string) (bool, error) {
	ids = searchable(ids)
	if len(ids) == 0 {
		return false, nil
	}
	pids, err := proc.Host.Pids()
	if err != nil {
		return false, fmt.Errorf("look for containers that are being started: %w", err)
	}
	for _, pid := range pids {
		argv, err := proc.Host.Cmdline(pid)
		if err != nil || len(argv) == 0 || strings.Contains(filepath.Base(argv[0]), "shim") {
			continue // it has ended, or is a thread of the kernel
		}
		if slices.ContainsFunc(argv, func(arg string) bool { return anyIn(arg, ids) }) {
			return true, nil
		}
	}
	return false, nil
}

// anyIn reports whether text contains one of the ids.
func anyIn(text string, ids []string) bool {
	return slices.ContainsFunc(ids, func(id string) bool { return strings.Contains(text, id) })
}

func searchable(ids []string) []string {
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return !Searchable(id) })
}
