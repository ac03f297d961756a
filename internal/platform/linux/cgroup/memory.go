package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/kfile"
	"holdfast/internal/platform/linux/proc"
)

// NoLimit means unlimited.
const NoLimit = math.MaxInt64

// Memory returns the hierarchy that has the memory controller, and whether there
// is one.
func (ms Mounts) Memory() (Mount, bool) {
	for _, v2 := range []bool{false, true} {
		for _, m := range ms {
			if m.V2 == v2 && m.Group("/").Has("memory") {
				return m, true
			}
		}
	}
	return Mount{}, false
}

// MemoryOfContainer returns the memory group of a container by the pid of one of its processes.
// Engines put the container's id into the group's name. ok is false if the process is in
// another group, for example because its pid is that of another process by now.
func (ms Mounts) MemoryOfContainer(p proc.FS, pid int, id string) (g Group, ok bool) {
	memory, ok := ms.Memory()
	if !ok || pid <= 0 || id == "" {
		return Group{}, false
	}
	groups, err := ms.Of(p, pid)
	if err != nil {
		return Group{}, false
	}
	for _, g := range groups {
		before, after, named := strings.Cut(g.Path, id)
		if g.Point == memory.Point && named {
			rest, _, _ := strings.Cut(after, "/") // the process may be in a group below
			return memory.Group(before + id + rest), true
		}
	}
	return Group{}, false
}

// Group is the group of a path in the hierarchy.
func (m Mount) Group(p string) Group {
	return Group{Point: m.Point, Path: path.Clean("/" + p), V2: m.V2, Controllers: m.Controllers}
}

// MemoryUsage is the memory charged to the group and all groups below it, in bytes.
func (g Group) MemoryUsage() (int64, error) {
	if g.V2 {
		return g.number("memory.current")
	}
	return g.number("memory.usage_in_bytes")
}

// KernelMemory is the part of MemoryUsage that the kernel uses, in bytes: page
// tables, stacks, directory entries, socket buffers. v2 has it since Linux 5.18.
// Before, and on v1 without kernel memory accounting, the error is
// errors.ErrUnsupported.
func (g Group) KernelMemory() (int64, error) {
	if !g.V2 {
		n, err := g.number("memory.kmem.usage_in_bytes")
		if errors.Is(err, fs.ErrNotExist) {
			return 0, fmt.Errorf("kernel memory of %s: %w", g.Dir(), errors.ErrUnsupported)
		}
		return n, err
	}
	m, err := g.MemoryStat()
	if err != nil {
		return 0, err
	}
	n, ok := m["kernel"]
	if !ok {
		return 0, fmt.Errorf("kernel memory of %s: %w", g.Dir(), errors.ErrUnsupported)
	}
	return n, nil
}

// MemoryPeak is the most that MemoryUsage has been, in bytes. v2 has it since Linux 5.19;
// before, the error is fs.ErrNotExist.
func (g Group) MemoryPeak() (int64, error) {
	if g.V2 {
		return g.number("memory.peak")
	}
	return g.number("memory.max_usage_in_bytes")
}

// OOMKills is the number of processes of the group and of those below it that the kernel
// has killed for a memory limit (memory.events of v2, memory.oom_control of v1).
func (g Group) OOMKills() (int, error) {
	file := "memory.oom_control"
	if g.V2 {
		file = "memory.events"
	}
	b, err := kfile.Read(g.Dir()+"/"+file, 4096)
	return int(ParseEvents(b)["oom_kill"]), err
}

// MemoryLimit is the group's own limit in bytes, or NoLimit.
func (g Group) MemoryLimit() (int64, error) {
	if g.V2 {
		return g.number("memory.max")
	}
	n, err := g.number("memory.limit_in_bytes")
	if n > math.MaxInt64-1<<20 { // the largest number of pages
		n = NoLimit
	}
	return n, err
}

// MemoryStat reads memory.stat (Documentation/admin-guide/cgroup-v1/memory.rst,
// cgroup-v2.rst), in which v1 has the group's own figures and, as total_…, those with
// all groups below it; v2 has only the latter. Most figures are bytes.
func (g Group) MemoryStat() (map[string]int64, error) {
	b, err := kfile.Read(g.Dir()+"/memory.stat", 64<<10)
	if err != nil {
		return nil, err
	}
	return ParseEvents(b), nil
}

// PageCache is the page cache that is charged to the group and all groups below it, in bytes.
func (g Group) PageCache() (int64, error) {
	s, err := g.MemoryStat()
	if g.V2 {
		return s["file"], err
	}
	return s["total_cache"], err
}

// Swapped is the memory of the group and all groups below it that is in swap space, in bytes.
func (g Group) Swapped() (int64, error) {
	if g.V2 {
		return g.number("memory.swap.current")
	}
	s, err := g.MemoryStat()
	return s["total_swap"], err
}

// CPUTime is the CPU time of the group and all groups below it since it was made: of v2, or
// of a hierarchy of v1 with the controller cpuacct.
func (g Group) CPUTime() (time.Duration, error) {
	if !g.V2 {
		n, err := g.number("cpuacct.usage")
		return time.Duration(n), err
	}
	b, err := kfile.Read(g.Dir()+"/cpu.stat", 64<<10)
	return time.Duration(ParseEvents(b)["usage_usec"]) * time.Microsecond, err
}

// Reclaim makes the kernel reclaim about n bytes from the group and all groups below
// it, from dying groups first, by memory.reclaim (v2). It returns nil even if the
// kernel could not reclaim as much. ctx ends it early. errors.ErrUnsupported on v1,
// and on v2 before Linux 5.19.
func (g Group) Reclaim(ctx context.Context, n int64) error {
	if !g.V2 {
		return fmt.Errorf("reclaim from %s: %w", g.Dir(), errors.ErrUnsupported)
	}
	err := kfile.WriteUntil(ctx, g.Dir()+"/memory.reclaim", strconv.FormatInt(n, 10))
	switch {
	case errors.Is(err, unix.EAGAIN):
		return nil
	case errors.Is(err, fs.ErrNotExist):
		if _, e := os.Stat(g.Dir()); e == nil {
			return fmt.Errorf("reclaim from %s: the kernel has no memory.reclaim (Linux 5.19 has): %w", g.Dir(), errors.ErrUnsupported)
		}
	}
	return err
}

const (
	// passes bounds the calls of Reclaim in EmptyMemory. One pass may leave half of
	// the memory of kernel objects (mm/vmscan.c, shrink_slab).
	passes = 10
	// passPause lets an RCU grace period pass, after which more is freed.
	passPause = 20 * time.Millisecond
)

// EmptyMemory makes the kernel reclaim as much as it can from the group and all
// groups below it: on v1 by memory.force_empty, on v2 by Reclaim as long as a pass
// frees a sixteenth or more. ctx ends it early.
func (g Group) EmptyMemory(ctx context.Context) error {
	if !g.V2 {
		return kfile.WriteUntil(ctx, g.Dir()+"/memory.force_empty", "0")
	}
	before, err := g.MemoryUsage()
	if err != nil {
		return err
	}
	for range passes {
		if before == 0 {
			return nil
		}
		if err := g.Reclaim(ctx, before); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(passPause):
		}
		after, err := g.MemoryUsage()
		if err != nil || after > before-before/16 {
			return nil // or the group is gone
		}
		before = after
	}
	return nil
}

func (g Group) number(file string) (int64, error) {
	b, err := kfile.ReadRecord(g.Dir()+"/"+file, 4095)
	if err != nil {
		return 0, err
	}
	text := strings.TrimSpace(string(b))
	if text == "max" {
		return NoLimit, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s/%s: %w: %q", g.Dir(), file, ErrFormat, text)
	}
	return n, nil
}
