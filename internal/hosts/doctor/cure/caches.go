package cure

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"holdfast"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/platform/linux/kfile"
)

// DropCaches drops the page cache, the directory entries and the inodes of the whole
// host. Holdfast never does this by itself.
func DropCaches() Cure {
	return Cure{Name: "drop-caches", prepare: func(_ context.Context, e Env, _ Options) (prepared, error) {
		now, err := readMeminfo(string(e.Host.Proc))
		if err != nil {
			return prepared{}, err
		}
		cached := 0.0
		for _, m := range now {
			cached += m.Value
		}
		a := dropping(e.Host, "3")
		a.plan.Bytes = int64(cached)
		a.plan.Gain = "frees up to " + size(int64(cached)) + " of memory; dying groups with unused pages are released"
		a.plan.Risk = "drops the host's whole page cache: all processes read from the disks again, for minutes. The cures memcg, pinned and dentries affect less. This cure is bounded neither in bytes nor in time"
		a.measure = func(context.Context) ([]Measure, error) { return readMeminfo(string(e.Host.Proc)) }
		return a, nil
	}}
}

// DropSlab drops the directory entries, the inodes and the other slab of the whole host
// that can be reclaimed, and keeps the page cache. The kernel drops all of it at once:
// the cure is refused if that is more than the bound of bytes.
func DropSlab() Cure {
	return Cure{Name: "drop-slab", prepare: func(_ context.Context, e Env, o Options) (prepared, error) {
		now, err := readMeminfo(string(e.Host.Proc))
		if err != nil {
			return prepared{}, err
		}
		slab := int64(0)
		for _, m := range now {
			if m.What == slabFigure {
				slab = int64(m.Value)
			}
		}
		a := dropping(e.Host, "2")
		a.plan.Bytes = slab
		a.plan.Gain = "frees up to " + size(slab) + " of kernel memory; dying groups that only directory entries and inodes keep are released"
		a.plan.Risk = "all processes look names up on the disks again. Before Linux 5.16 the page cache of files that no process has open is lost, too. A drop that has begun goes on until it is complete, or its process dies"
		a.measure = func(ctx context.Context) ([]Measure, error) {
			ms, err := readMeminfo(string(e.Host.Proc))
			if dying, ok := settledDying(ctx, e.Host); ok {
				ms = append(ms, Measure{What: dyingFigure, Value: dying})
			}
			return ms, err
		}
		if slab > o.Bytes {
			tooMuch := fmt.Sprintf("%s of slab can be reclaimed, more than the bound of %s: the kernel drops all of it or nothing", size(slab), size(o.Bytes))
			if o.Apply {
				return a, holdfast.WithHint(fmt.Errorf("%w: %s", ErrTooMuch, tooMuch), "--bytes raises the bound")
			}
			a.notes = append(a.notes, tooMuch)
		}
		return a, nil
	}}
}

// ErrTooMuch means that a cure would free more than its bound.
var ErrTooMuch = errors.New("it would free too much")

// dropping returns a cure that writes value to drop_caches
// (Documentation/admin-guide/sysctl/vm.rst).
func dropping(h probe.Host, value string) prepared {
	file := filepath.Join(string(h.Proc), "sys/vm/drop_caches")
	return prepared{
		target: file, root: "dropping caches",
		plan: Plan{Does: []string{"write dirty pages to the disks (sync)", "write " + value + " to " + file}},
		do: func(ctx context.Context) (result, error) {
			var r result
			if err := syncAll(ctx); err != nil {
				return r, err
			}
			err := kfile.WriteUntil(ctx, file, value)
			if errors.Is(err, kfile.ErrStuck) { // only a fatal signal would interrupt it
				r.notes, err = append(r.notes, "the kernel continues the reclaim"), nil
			}
			return r, err
		},
	}
}

// Names of figures.
const (
	slabFigure  = "slab that can be reclaimed"
	dyingFigure = "dying memory cgroups on this host"
)

func readMeminfo(proc string) ([]Measure, error) {
	b, err := kfile.Read(proc+"/meminfo", 64<<10)
	if err != nil {
		return nil, err
	}
	var ms []Measure
	for line := range strings.Lines(string(b)) {
		var name string
		var kb float64
		if _, err := fmt.Sscan(line, &name, &kb); err != nil {
			continue
		}
		switch name {
		case "Cached:":
			ms = append(ms, Measure{"page cache", "B", kb * 1024})
		case "SReclaimable:":
			ms = append(ms, Measure{slabFigure, "B", kb * 1024})
		}
	}
	return ms, nil
}
