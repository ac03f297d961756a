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
	"holdfast/internal/sessions/session"
)

// MemoryParts is the memory of one warm container in KiB, as the mean over Of of them.
type MemoryParts struct {
	Row string `json:"row"`
	Of  int    `json:"of"`
	// Own is the Pss (proc(5)) of its processes, in which shared pages count in parts.
	// Shim is the Pss of the engine's shim process. Kernel is the kernel memory of its
	// control group, -1 if the kernel does not report it.
	Own    float64 `json:"own"`
	Shim   float64 `json:"shim"`
	Kernel float64 `json:"kernel"`
	// Host is the decrease of the host's available memory for each. It includes the
	// engine's own memory and kernel memory charged to other groups.
	Host float64 `json:"host"`
}

// settleMemory is the wait before the host's memory is read.
const settleMemory = 2 * time.Second

// memory measures the memory of a warm container. It first measures one, which includes the
// fixed costs of engine and agent, then o.Memory of them.
func (x *bootBench) memory(ctx context.Context, r *Result, d *BootDetails) error {
	n := x.o.Memory
	if n == 0 {
		return nil
	}
	kind := func(n int) bootMode {
		return bootMode{name: fmt.Sprint("memory-", n), row: "memory of a warm container", template: fmt.Sprintf("warm: %d", n), warm: true, pooled: true}
	}
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
	return nil
}

// ready calls f with an idle agent that has a full pool.
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
	kernel := "the kernel does not report its share"
	if p.Kernel >= 0 {
		kernel = fmt.Sprintf("the kernel %.0f KiB for its control group", p.Kernel)
	}
	return fmt.Sprintf("%s (mean of %d): its processes use %.0f KiB, the engine's shim %.0f, %s; the host has %.0f less available", p.Row, p.Of, p.Own, p.Shim, kernel, p.Host)
}

// look fills in the parts of what an agent keeps ready and returns the sum of each.
func (p *MemoryParts) look(ctx context.Context, a *bootAgent) (each []float64, err error) {
	groups, err := cgroup.Find(proc.Host)
	if err != nil {
		return nil, err
	}
	list, err := a.engine.List(ctx, map[string]string{session.LabelNode: a.node})
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

// memoryOf returns the memory of a container's processes, of its shim and of the kernel
// for it, in KiB. kernel is -1 if the kernel does not report it.
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
	g, err := MemoryGroup(groups, c.Pid)
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

// MemoryGroup returns the control group that a process's memory is charged to. If both
// hierarchies are mounted and v1 has the memory controller, it is the v1 group.
func MemoryGroup(groups cgroup.Mounts, pid int) (cgroup.Group, error) {
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
	return cgroup.Group{}, fmt.Errorf("process %d is in no control group with the memory controller", pid)
}

// pss returns a process's Pss in KiB.
func pss(pid int) (float64, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	s, err := p.ProcSMapsRollup()
	return float64(s.Pss) / 1024, err
}

// available returns the host's available memory in KiB.
func available() (float64, error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, err
	}
	m, err := fs.Meminfo()
	if err == nil && m.MemAvailable == nil {
		err = errors.New("/proc/meminfo has no MemAvailable")
	}
	if err != nil {
		return 0, err
	}
	return float64(*m.MemAvailable), nil
}
