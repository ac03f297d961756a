package job

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
)

// emptyLimit bounds the time spent on reclaiming memory before a job's containers
// are removed.
const emptyLimit = 2 * time.Second

// emptyMemory asks the kernel to reclaim the memory of the job's running
// containers just before they are removed. Otherwise page cache that they have
// read keeps their control groups alive as dying ones (internal/hosts/doctor).
// Exited containers have no memory left. This is best effort, so errors are not
// reported.
func (x *underway) emptyMemory(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, emptyLimit)
	defer cancel()
	mounts, err := cgroup.Find(proc.Host)
	if err != nil {
		return
	}
	list, err := x.Engine.List(ctx, map[string]string{LabelJob: x.id})
	if err != nil {
		return
	}
	var g errgroup.Group
	g.SetLimit(removals)
	for _, c := range list {
		if !c.Running() {
			continue
		}
		g.Go(func() error {
			c, err := x.Engine.Inspect(ctx, c.ID)
			if err != nil {
				return nil
			}
			if group, ok := mounts.MemoryOfContainer(proc.Host, c.Pid, c.ID); ok {
				_ = group.EmptyMemory(ctx) // the container may have ended
			}
			return nil
		})
	}
	_ = g.Wait() // the functions return no errors
}
