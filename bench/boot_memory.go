package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/procfs"

	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/sessions/pool/network"
	"holdfast/internal/sessions/session"
)

// MemoryParts is what one of the things costs that are kept ready, in KiB: means of
// Of of them.
type MemoryParts struct {
	Row string `json:"row"`
	Of  int    `json:"of"`
	// Own is its processes' share of memory (Pss, proc(5): pages that several have
	// count in parts), Shim that of the engine's process beside it, and Kernel what
	// the kernel holds for its control group; -1 where that does not tell.
	Own    float64 `json:"own"`
	Shim   float64 `json:"shim"`
	Kernel float64 `json:"kernel"`
	// Host is what less of the host's memory is available for each, which has also
	// what the engine itself, and the kernel in other groups' names, hold for it.
	Host float64 `json:"host"`
}

// settleMemory is how long a host's figures get to come to rest.
const settleMemory = 2 * time.Second

// memory measures what a ready network and a warm container cost: first one, of which
// the engine and the agent have what they have only once, then as many as were asked
// for.
func (x *bootBench) memory(ctx context.Context, r *Result, d *BootDetails) error {
	n := x.o.Memory
	if n == 0 {
		return nil
	}
	kinds := []func(int) bootMode{
		func(n int) bootMode {
			return bootMode{name: fmt.Sprint("memory-net-", n), row: "memory of a ready network", template: "network: pooled", networks: n}
		},
		func(n int) bootMode {
			return bootMode{name: fmt.Sprint("memory-warm-", n), row: "memory of a warm container", template: fmt.Sprintf("network: bridge, warm: %d", n), warm: true}
		},
	}
	for _, kind := range kinds {
		fmt.Fprintf(x.o.Progress, "%s: of %d\n", kind(n).row, n)
		var before, after float64
		var each []float64
		parts := MemoryParts{Row: kind(n).row, Of: n}
		err := x.ready(ctx, kind(1), func(*bootAgent) (err error) { before, err = available(); return err })
		if err == nil {
			err = x.ready(ctx, kind(n), func(a *bootAgent) (err error) {
				if after, err = available(); err != nil {
					return err
				}
				each, err = parts.look(ctx, a)
				return err
			})
		}
		if err != nil {
			return fmt.Errorf("%s: %w", kind(n).row, err)
		}
		parts.Host = (before - after) / float64(n-1)
		r.Rows, d.Memory = append(r.Rows, NewRow(parts.Row, "KiB", each)), append(d.Memory, parts)
		r.Notes = append(r.Notes, parts.String())
	}
	return nil
}

// ready has f look at an agent whose pool is full, and which does nothing.
func (x *bootBench) ready(ctx context.Context, m bootMode, f func(*bootAgent) error) error {
	return x.with(ctx, []bootMode{m}, func(agents []*bootAgent) error {
		if err := settleAll(ctx, x, agents, fillLimit(x.o.Memory)); err != nil {
			return err
		}
		time.Sleep(settleMemory)
		return f(agents[0])
	})
}

func (p MemoryParts) String() string {
	kernel := "the kernel does not tell what it holds for it"
	if p.Kernel >= 0 {
		kernel = fmt.Sprintf("the kernel %.0f KiB for its control group", p.Kernel)
	}
	return fmt.Sprintf("%s (mean of %d): its processes have %.0f KiB, the engine's shim %.0f, %s; the host has %.0f less", p.Row, p.Of, p.Own, p.Shim, kernel, p.Host)
}

// look fills in the parts of what an agent keeps ready, and returns their sum for each.
func (p *MemoryParts) look(ctx context.Context, a *bootAgent) (each []float64, err error) {
	groups, err := cgroup.Find(proc.Host)
	if err != nil {
		return nil, err
	}
	label := network.Label
	if a.mode.warm {
		label = session.LabelNode
	}
	list, err := a.engine.List(ctx, map[string]string{label: a.node})
	if err != nil {
		return nil, err
	}
	if len(list) != p.Of {
		return nil, fmt.Errorf("%d are ready of %d", len(list), p.Of)
	}
	for _, c := range list {
		own, shim, kernel, err := memoryOf(ctx, a.engine, groups, c.ID)
		if err != nil {
			return nil, err
		}
		part := 1 / float64(len(list))
		p.Own, p.Shim, p.Kernel = p.Own+own*part, p.Shim+shim*part, p.Kernel+kernel*part
		each = append(each, own+shim+max(kernel, 0))
	}
	return each, nil
}

// memoryOf is what a container's processes, its shim, and the kernel for it have, in
// KiB; kernel is -1 where that is not told.
func memoryOf(ctx context.Context, e engine.Engine, groups cgroup.Mounts, id string) (own, shim, kernel float64, err error) {
	c, err := e.Inspect(ctx, id)
	if err != nil {
		return 0, 0, 0, err
	}
	stat, err := proc.Host.Stat(c.Pid)
	if err != nil {
		return 0, 0, 0, err
	}
	if shim, err = pss(stat.PPid); err != nil {
		return 0, 0, 0, err
	}
	g, err := memoryGroup(groups, c.Pid)
	if err != nil {
		return 0, 0, 0, err
	}
	pids, err := g.Procs()
	if err != nil {
		return 0, 0, 0, err
	}
	for _, pid := range pids {
		share, err := pss(pid)
		if err != nil {
			return 0, 0, 0, err
		}
		own += share
	}
	bytes, err := g.KernelMemory()
	if errors.Is(err, errors.ErrUnsupported) {
		return own, shim, -1, nil
	}
	return own, shim, float64(bytes) / 1024, err
}

// memoryGroup is the group of a process that its memory is charged to. Where both
// hierarchies are there, v1 has the memory if it is mounted with it.
func memoryGroup(groups cgroup.Mounts, pid int) (cgroup.Group, error) {
	of, err := groups.Of(proc.Host, pid)
	if err != nil {
		return cgroup.Group{}, err
	}
	for _, fits := range []func(cgroup.Group) bool{
		func(g cgroup.Group) bool { return g.Has("memory") }, func(g cgroup.Group) bool { return g.V2 },
	} {
		if i := slices.IndexFunc(of, fits); i >= 0 {
			return of[i], nil
		}
	}
	return cgroup.Group{}, fmt.Errorf("process %d is in no group with memory", pid)
}

// pss is a process's share of memory in KiB.
func pss(pid int) (float64, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	s, err := p.ProcSMapsRollup()
	return float64(s.Pss) / 1024, err
}

// available is the host's available memory in KiB.
func available() (float64, error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, err
	}
	m, err := fs.Meminfo()
	if err == nil && m.MemAvailable == nil {
		err = errors.New("the kernel does not tell how much memory is available")
	}
	if err != nil {
		return 0, err
	}
	return float64(*m.MemAvailable), nil
}
