package cure

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/kfile"
)

// Self empties the memory cgroup that this very process is in: the last thing that
// a container does before it is removed, so that no page of its keeps the group.
// It needs nothing but that group's own file.
func Self() Cure {
	return Cure{Name: "memcg --self", prepare: func(_ context.Context, e Env, o Options) (act, error) {
		g, err := ownGroup(e.Host)
		if err != nil {
			return act{}, err
		}
		file := emptyFile(g)
		if err := writable(file); err != nil {
			return act{}, err
		}
		usage, err := g.MemoryUsage()
		if err != nil {
			return act{}, err
		}
		a := act{target: g.Dir(), locks: []string{g.Path}, plan: Plan{
			Bytes: usage,
			Does:  []string{"write dirty pages to the disks (sync)", fmt.Sprintf("have the kernel take what it can from %s, at most %s (%s)", g.Dir(), size(o.Bytes), filepath.Base(file))},
			Gain:  "the group can go when the container does: it does not stay as a dying one",
			Risk:  "what still runs in the container reads its files from the disk again",
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

// ownGroup is the group of this process in the hierarchy with the memory
// controller.
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
		// Only the real root has no figures of its own on v2, and a release
		// agent on v1 (kernel/cgroup/cgroup-v1.c).
		if _, err := os.Lstat(filepath.Join(g.Dir(), "release_agent")); err == nil || g.V2 && !readable(filepath.Join(g.Dir(), "memory.current")) {
			return g, holdfast.WithHint(errors.New("this process is in the root control group, which is no container's"), "--self is for inside a container; --cgroup names a group")
		}
		return g, nil
	}
	return cgroup.Group{}, holdfast.WithHint(errors.New("the control group of this process is not below what is mounted here"), "mount the container's own control groups into it")
}

// writable says what is missing where a file cannot be written.
func writable(file string) error {
	err := unix.Access(file, unix.W_OK)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EROFS):
		return holdfast.WithHint(fmt.Errorf("%s: the control groups are mounted read-only in here", file),
			"run the container with them writable (a privileged one has them so), or cure it from the host: holdfast doctor cure dentries --container NAME")
	case errors.Is(err, unix.EACCES):
		return holdfast.WithHint(fmt.Errorf("%s may not be written by this user", file), "run it as root")
	case errors.Is(err, fs.ErrNotExist) && strings.HasSuffix(file, "memory.reclaim"):
		return holdfast.WithHint(fmt.Errorf("%s is not there", file), "memory.reclaim came with Linux 5.19")
	}
	return &fs.PathError{Op: "write", Path: file, Err: err}
}

var errEnough = errors.New("it has freed what it may")

// emptyBounded has the kernel take all of a group until what is measured has
// fallen by most, or to the floor.
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
		w = &watch{usual: map[string]float64{}}
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
			r.stopped = fmt.Sprintf("its bound of %s was used up", size(most))
		}
		err = nil
	case errors.Is(err, kfile.ErrStuck):
		r.notes = append(r.notes, "the kernel goes on with it")
		err = nil
	}
	return r, err
}

// emptyPasses bounds how often the kernel is asked again.
const emptyPasses = 4

// emptyTo has the kernel take all of a group, and once more as long as that helps and
// more than floor is left: what RCU frees is charged until a moment later.
func emptyTo(ctx context.Context, g cgroup.Group, measure func() (int64, error), floor int64) error {
	for range emptyPasses {
		before, err := measure()
		if err != nil {
			return err
		}
		if err := g.EmptyMemory(ctx); err != nil || floor == 0 {
			return err
		}
		select {
		case <-time.After(settle):
		case <-ctx.Done():
			return ctx.Err()
		}
		if now, err := measure(); err != nil || now <= floor || float64(before-now) < noProgress*float64(before) {
			return err
		}
	}
	return nil
}

// Dentries has the kernel take back the memory that a container's directory
// entries hold, in that container's group alone.
func Dentries(group string) Cure {
	return Cure{Name: "dentries", prepare: func(ctx context.Context, e Env, o Options) (act, error) {
		g, err := findGroup(e.Host, group)
		if err != nil {
			return act{}, err
		}
		if g.IsRoot() {
			return act{}, holdfast.WithHint(errors.New("the root is everybody's"), "name the container's group")
		}
		kernel := func() (int64, error) { return kernelMemory(g) }
		held, err := kernel()
		if err != nil {
			return act{}, err
		}
		a := act{target: g.Path, locks: []string{g.Path}, plan: Plan{
			Bytes: min(held, o.Bytes),
			Does: []string{"write dirty pages to the disks (sync)",
				fmt.Sprintf("have the kernel take back memory in %s (%s), until a tenth of its %s of kernel memory is left or %s are freed", g.Dir(), filepath.Base(emptyFile(g)), size(held), size(o.Bytes))},
			Gain: fmt.Sprintf("up to %s of the kernel's memory; the container ends in tens of milliseconds instead of seconds", size(held)),
			Risk: "that container reads its files from the disk again; nobody else is touched",
		}}
		if held < least {
			a.notes = append(a.notes, fmt.Sprintf("its kernel memory is %s: there is nothing to take back", size(held)))
			return a, nil
		}
		if o.Apply && os.Geteuid() != 0 {
			return a, notRoot("emptying a control group")
		}
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

// kernelMemory is the kernel's memory of a group that can be taken back, in bytes;
// on v1 that which cannot is in it.
func kernelMemory(g cgroup.Group) (int64, error) {
	if !g.V2 {
		b, err := kfile.Read(filepath.Join(g.Dir(), "memory.kmem.usage_in_bytes"), 4096)
		if err != nil {
			return 0, err
		}
		var n int64
		_, err = fmt.Sscan(string(b), &n)
		return n, err
	}
	s, err := g.MemoryStat()
	return s["slab_reclaimable"], err
}
