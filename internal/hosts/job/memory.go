package job

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
)

// emptyLimit bounds what is done about memory before a job's containers are removed.
const emptyLimit = 2 * time.Second

// emptyMemory has the kernel take back what it can of the memory of the job's
// containers that still run, just before they are removed: of what they have read
// nothing keeps their control groups then, which would stay as dying ones
// (internal/hosts/doctor). Those that have ended have none any more. Nothing depends on
// it, and so nothing is told of what goes wrong.
func (x *underway) emptyMemory(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, emptyLimit)
	defer cancel()
	mounts, err := cgroup.Find(proc.Host)
	if err != nil {
		return
	}
	memory, ok := mounts.Memory()
	if !ok {
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
			if c, err := x.Engine.Inspect(ctx, c.ID); err == nil && c.CgroupPath != "" && c.CgroupPath != "/" {
				_ = memory.Group(c.CgroupPath).EmptyMemory(ctx) // it may have gone, or be another kernel's
			}
			return nil
		})
	}
	_ = g.Wait() // they return none
}
