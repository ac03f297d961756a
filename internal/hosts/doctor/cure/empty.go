package cure

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/kfile"
	"holdfast/internal/platform/tasks"
)

// Self empties the memory cgroup of this process. It is the last action of a container
// before its removal, so that no page of the container keeps the group. It only needs
// that group's own file.
func Self() Cure {
	return Cure{Name: "memcg --self", prepare: func(_ context.Context, e Env, o Options) (prepared, error) {
		g, err := ownGroup(e.Host)
		if err != nil {
			return prepared{}, err
		}
		file := emptyFile(g)
		if err := writable(file); err != nil {
			return prepared{}, err
		}
		usage, err := g.MemoryUsage()
		if err != nil {
			return prepared{}, err
		}
		a := prepared{target: g.Dir(), lock: g.Path, plan: Plan{
			Bytes: usage,
			Does:  []string{"write dirty pages to the disks (sync)", fmt.Sprintf("reclaim what the kernel can from %s, at most %s (%s)", g.Dir(), size(o.Bytes), filepath.Base(file))},
			Gain:  "the group is released with the container and does not stay as a dying group",
			Risk:  "processes in the container read their files from the disk again",
		}}
		a.measure = func(context.Context) ([]Measure, error) {
			n, err := g.MemoryUsage()
			return []Measure{{"memory charged to the group", "B", float64(n)}}, err
		}
		a.do = func(ctx context.Context) (result, error) {
			return emptyBounded(ctx, nil, g, o.Bytes, g.MemoryUsage, 0)
		}
		return a, nil
	}}
}

func emptyFile(g cgroup.Group) string {
	if g.V2 {
		return filepath.Join(g.Dir(), "memory.reclaim")
	}
	return filepath.Join(g.Dir(), "memory.force_empty")
}

// ownGroup returns the group of this process in the hierarchy with the memory controller.
func ownGroup(h probe.Host) (cgroup.Group, error) {
	m, ok := h.Groups.Memory()
	if !ok {
		return cgroup.Group{}, holdfast.WithHint(errNoMemory, "mount the control groups into the container: docker run -v /sys/fs/cgroup:/sys/fs/cgroup")
	}
	groups, err := h.Groups.Of(h.Proc, os.Getpid())
	if err != nil {
		return cgroup.Group{}, err
	}
	for _, g := range groups {
		if g.Point != m.Point {
			continue
		}
		// Only the real root has no figures of its own on v2, and a release agent on v1
		// (kernel/cgroup/cgroup-v1.c).
		if _, err := os.Lstat(filepath.Join(g.Dir(), "release_agent")); err == nil || g.V2 && !readable(filepath.Join(g.Dir(), "memory.current")) {
			return g, holdfast.WithHint(errors.New("this process is in the root control group and not in that of a container"), "use --self inside a container, or name a group with --cgroup")
		}
		return g, nil
	}
	return cgroup.Group{}, holdfast.WithHint(errors.New("the control group of this process is not below the mount point"), "mount the container's own control groups into it")
}

// writable returns an error that explains why a file cannot be written.
func writable(file string) error {
	err := unix.Access(file, unix.W_OK)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EROFS):
		return holdfast.WithHint(fmt.Errorf("%s: the control groups are mounted read-only in this container", file),
			"mount the control groups writable (they are in a privileged container), or cure the container from the host: holdfast doctor cure dentries --container NAME")
	case errors.Is(err, unix.EACCES):
		return holdfast.WithHint(fmt.Errorf("this user may not write %s", file), "run it as root")
	case errors.Is(err, fs.ErrNotExist) && strings.HasSuffix(file, "memory.reclaim"):
		return holdfast.WithHint(fmt.Errorf("%s does not exist", file), "memory.reclaim needs Linux 5.19")
	}
	return &fs.PathError{Op: "write", Path: file, Err: err}
}

var errEnough = errors.New("the bound is reached")

// emptyBounded reclaims memory of a group until the measured value has fallen by most, or
// to the floor.
func emptyBounded(ctx context.Context, w *watch, g cgroup.Group, most int64, measure func() (int64, error), floor int64) (result, error) {
	var r result
	from, err := measure()
	if err != nil {
		return r, err
	}
	if err := syncAll(ctx); err != nil {
		return r, err
	}
	if w == nil {
		w = watchSwap(g)
	}
	err = w.guarded(ctx, lossEvery, func() error {
		if now, err := measure(); err == nil && (from-now >= most || now <= floor) {
			return errEnough
		}
		return nil
	}, func(ctx context.Context) error { return emptyTo(ctx, g, measure, floor) })
	switch {
	case errors.Is(err, errEnough):
		if now, e := measure(); e == nil && now > floor {
			r.stopped = fmt.Sprintf("its bound of %s was reached", size(most))
		}
		err = nil
	case errors.Is(err, kfile.ErrStuck):
		r.notes = append(r.notes, "the kernel continues the reclaim")
		err = nil
	}
	return r, err
}

// emptyPasses bounds the number of reclaim requests.
const emptyPasses = 4

// emptyTo requests reclaim of a whole group repeatedly while that helps and more than
// floor is left. Memory that RCU frees stays charged for a short time.
func emptyTo(ctx context.Context, g cgroup.Group, measure func() (int64, error), floor int64) error {
	for range emptyPasses {
		before, err := measure()
		if err != nil {
			return err
		}
		if err := g.EmptyMemory(ctx); err != nil || floor == 0 {
			return err
		}
		if err := tasks.Sleep(ctx, settle); err != nil {
			return err
		}
		if now, err := measure(); err != nil || now <= floor || float64(before-now) < noProgress*float64(before) {
			return err
		}
	}
	return nil
}

// Dentries reclaims the memory of a container's directory entries, in the container's
// group only.
func Dentries(group string) Cure {
	return Cure{Name: "dentries", prepare: func(ctx context.Context, e Env, o Options) (prepared, error) {
		g, err := findGroup(e.Host, group)
		if err != nil {
			return prepared{}, err
		}
		if g.IsRoot() {
			return prepared{}, holdfast.WithHint(errors.New("the root group is shared by all processes"), "name the container's group")
		}
		kernel := func() (int64, error) { return kernelMemory(g) }
		held, err := kernel()
		if err != nil {
			return prepared{}, err
		}
		a := prepared{target: g.Path, lock: g.Path, plan: Plan{
			Bytes: min(held, o.Bytes),
			Does: []string{"write dirty pages to the disks (sync)",
				fmt.Sprintf("reclaim memory in %s (%s), until a tenth of its %s of kernel memory is left or %s are freed", g.Dir(), filepath.Base(emptyFile(g)), size(held), size(o.Bytes))},
			Gain: fmt.Sprintf("frees up to %s of kernel memory; the container ends in tens of milliseconds instead of seconds", size(held)),
			Risk: "the container reads its files from the disk again; stops when it stalls, or when over " + size(maxSwapped) + " of its memory moves to swap space; no other container is affected",
		}}
		if held < least {
			a.notes = append(a.notes, fmt.Sprintf("its kernel memory is %s: there is nothing to reclaim", size(held)))
			return a, nil
		}
		a.root = "emptying a control group"
		a.measure = func(context.Context) ([]Measure, error) {
			k, err := kernel()
			if err != nil {
				return nil, err
			}
			u, err := g.MemoryUsage()
			return []Measure{{"kernel memory of the group", "B", float64(k)}, {"memory charged to the group", "B", float64(u)}}, err
		}
		a.do = func(ctx context.Context) (result, error) {
			return emptyBounded(ctx, newWatch(ctx, e.Host, g), g, o.Bytes, kernel, held/10)
		}
		return a, nil
	}}
}

// kernelMemory returns the reclaimable kernel memory of a group in bytes; on v1 it
// includes memory that cannot be reclaimed.
func kernelMemory(g cgroup.Group) (int64, error) {
	if !g.V2 {
		return g.KernelMemory()
	}
	s, err := g.MemoryStat()
	return s["slab_reclaimable"], err
}
