package kill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/proc"
)

// Errors that callers decide by; they come wrapped.
var (
	// ErrGone means that the container's init was dead before it was opened.
	ErrGone = pidfd.ErrGone
	// ErrProtected means that the pid is that of this process, of an ancestor, of the
	// host's init, or of the container that this process is in.
	ErrProtected = errors.New("this process must not be killed")
	// ErrStranger means that no control group of the process carries the container's
	// id: the pid belongs to another process by now, or the engine is on another
	// host, or the container has no control group to be seen empty.
	ErrStranger = errors.New("it is in no control group of the container")
)

// minIDLen is the shortest container id that a control group is recognised by:
// the 12 hex digits that engines show. Anything shorter might be a word.
const minIDLen = 12

// Target is a container that can be killed: a handle on its init, opened when the
// container starts, so that a later reuse of the pid cannot mislead. It costs two
// descriptors. Its methods may be called from any goroutine.
type Target struct {
	ID   string // the engine's full id
	Name string
	Key  holdfast.SessionKey // "" if the container serves no session

	init *pidfd.Process
	// shim is the parent of init. It reaps init and every process that the engine has
	// started in the container. nil if the parent is not a shim.
	shim *pidfd.Process
	// alone is true if init is pid 1 of a pid namespace: the kernel kills everything
	// in that namespace with it.
	alone  bool
	groups []cgroup.Group // those of the container itself, the unified one first
	memory cgroup.Group   // its group in the hierarchy with the memory controller; zero if there is none
	cpu    cgroup.Group   // likewise in the one that counts CPU time

	mu     sync.Mutex
	closed bool
	mounts *int // descriptor of the mount namespace, from a Kill until Close
}

// Open opens a running container by its init's pid in this process's pid namespace,
// as the engine reports it. ErrGone, ErrProtected, ErrStranger.
func Open(id, name string, pid int) (*Target, error) {
	o, err := NewOpener()
	if err != nil {
		return nil, err
	}
	return o.Open(id, name, pid)
}

// Opener opens targets. It keeps what Open would have to find out each time: where
// control groups are mounted, and this process's ancestors and groups.
type Opener struct {
	// NoShims opens targets without their shims, for a Killer that does not
	// stop the engine: one descriptor each instead of two.
	NoShims bool

	mounts    cgroup.Mounts
	memory    cgroup.Mount // the one with the memory controller; zero if there is none
	protected map[int]bool
	own       []cgroup.Group // of this process
}

// NewOpener reads this process's mounts, ancestors and groups.
func NewOpener() (*Opener, error) {
	mounts, err := cgroup.Find(proc.Host)
	if err != nil {
		return nil, fmt.Errorf("find control groups: %w", err)
	}
	protected, err := Protected()
	if err != nil {
		return nil, err
	}
	own, err := mounts.Of(proc.Host, os.Getpid())
	if err != nil {
		return nil, fmt.Errorf("find the control groups of this process: %w", err)
	}
	o := &Opener{mounts: mounts, own: own, protected: protected}
	o.memory, _ = mounts.Memory()
	return o, nil
}

// Protected returns the processes that must be neither killed nor stopped: this one,
// its ancestors, and the host's init.
func Protected() (map[int]bool, error) {
	ancestors, err := proc.Host.Ancestors(os.Getpid())
	if err != nil {
		return nil, fmt.Errorf("find the ancestors of this process: %w", err)
	}
	protected := map[int]bool{1: true, os.Getpid(): true}
	for _, pid := range ancestors {
		protected[pid] = true
	}
	return protected, nil
}

// Open is like the function Open.
func (o *Opener) Open(id, name string, pid int) (*Target, error) {
	t, err := o.open(id, name, pid)
	if err != nil {
		return nil, fmt.Errorf("hold container %s: %w", nameOf(id, name), err)
	}
	return t, nil
}

// ending waits briefly for a process without a control group to be dead. A process
// that exits leaves its groups before its pidfd is readable (do_exit in
// kernel/exit.c: cgroup_exit comes before exit_notify).
func ending(p *pidfd.Process) bool {
	for range 20 {
		if p.Exited() {
			return true
		}
		time.Sleep(5 * time.Millisecond)
	}
	return false
}

func (o *Opener) open(id, name string, pid int) (*Target, error) {
	if pid <= 0 || o.protected[pid] {
		return nil, fmt.Errorf("process %d: %w", pid, ErrProtected)
	}
	init, err := pidfd.Open(pid)
	if err != nil {
		return nil, err
	}
	t := &Target{ID: id, Name: name, init: init}
	if err := t.look(o); err != nil {
		t.Close()
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("process %d: %w", pid, ErrGone)
		}
		return nil, err
	}
	// If the opened process still lives, all of that was read from it.
	if init.Exited() {
		t.Close()
		return nil, fmt.Errorf("process %d: %w", pid, ErrGone)
	}
	if len(t.groups) == 0 {
		defer t.Close()
		if ending(init) {
			return nil, fmt.Errorf("process %d: %w", pid, ErrGone)
		}
		return nil, fmt.Errorf("process %d: %w", pid, ErrStranger)
	}
	if o.inside(t) {
		t.Close()
		return nil, fmt.Errorf("process %d is the init of the container that this one runs in: %w", pid, ErrProtected)
	}
	return t, nil
}

// inside reports whether this process is in the container. Its ancestors do not show
// that: a process that the engine has started in a container is the shim's child.
func (o *Opener) inside(t *Target) bool {
	return slices.ContainsFunc(t.groups, func(g cgroup.Group) bool { return slices.ContainsFunc(o.own, g.Contains) })
}

// look finds init's groups, pid namespace and shim.
func (t *Target) look(o *Opener) error {
	pid := t.init.Pid()
	pids, err := proc.Host.NSpid(pid)
	if err != nil {
		return err
	}
	t.alone = len(pids) > 1 && pids[len(pids)-1] == 1
	groups, err := o.mounts.Of(proc.Host, pid)
	if err != nil {
		return err
	}
	for _, g := range groups {
		own, ok := g.Topmost(t.owns)
		if !ok {
			continue
		}
		if wanted(own) {
			t.groups = append(t.groups, own)
		}
		if own.Point == o.memory.Point {
			t.memory = own
		}
		if own.V2 && t.cpu.Point == "" || own.Has("cpuacct") {
			t.cpu = own
		}
	}
	if !o.NoShims {
		t.shim, err = o.findShim(pid)
	}
	return err
}

// owns reports whether a control group of this name is the container's own:
// <id> (cgroupfs) or docker-<id>.scope, cri-containerd-<id>.scope (systemd).
func (t *Target) owns(name string) bool {
	return len(t.ID) >= minIDLen && strings.Contains(name, t.ID)
}

// wanted picks the hierarchies to look at. An engine puts a container into the same
// group of each, so the unified one and one of v1 are enough. The freezer is the v1
// hierarchy that can also stop a group.
func wanted(g cgroup.Group) bool { return g.V2 || g.Has("freezer") }

// shimPrefix is the prefix of the names of containerd's shims: containerd-shim,
// containerd-shim-runc-v2, containerd-shim-runsc-v1. A comm holds 15 bytes.
const shimPrefix = "containerd-shim"

// findShim opens the parent of init if it is one of containerd's shims.
func (o *Opener) findShim(init int) (*pidfd.Process, error) {
	s, err := proc.Host.Stat(init)
	if err != nil {
		return nil, err
	}
	if s.PPid == 0 || o.protected[s.PPid] {
		return nil, nil
	}
	shim, err := pidfd.Open(s.PPid)
	if errors.Is(err, pidfd.ErrGone) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	// A process can change its comm, so the name of the executable counts.
	exe, err := proc.Host.Exe(s.PPid)
	if err != nil || !strings.HasPrefix(path.Base(exe), shimPrefix) {
		shim.Close()
		return nil, nil //nolint:nilerr // a parent that this process cannot see is not a shim of this host
	}
	return shim, nil
}

// Pid is init's pid in this process's pid namespace.
func (t *Target) Pid() int { return t.init.Pid() }

// Start is when init started, in ticks after boot.
func (t *Target) Start() uint64 { return t.init.Start() }

// Init is the handle on the container's init. It belongs to the target.
func (t *Target) Init() *pidfd.Process { return t.init }

// Shim is the handle on the process that reaps init, nil if its parent is not a shim.
// It belongs to the target.
func (t *Target) Shim() *pidfd.Process { return t.shim }

// Alone reports whether the container has a pid namespace of its own.
func (t *Target) Alone() bool { return t.alone }

// Memory is a container's memory control group, and the one that counts its CPU time. It has
// no descriptor, and may be used after the target is closed.
type Memory struct{ group, cpu cgroup.Group }

// Memory returns the container's memory control group.
func (t *Target) Memory() Memory { return Memory{t.memory, t.cpu} }

// CPU returns the CPU time of all processes of the container since its start.
func (m Memory) CPU() (time.Duration, error) {
	if m.cpu.Point == "" || m.cpu.IsRoot() {
		return 0, fs.ErrNotExist
	}
	return m.cpu.CPUTime()
}

// Cache returns the part of Usage that is page cache, in bytes; 0 if it is unknown. It takes
// the kernel longer than Usage.
func (m Memory) Cache() int64 {
	if m.group.Point == "" || m.group.IsRoot() {
		return 0
	}
	n, _ := m.group.PageCache()
	return n
}

// Usage returns the memory that is charged to the container, in bytes.
func (m Memory) Usage() (int64, error) {
	if m.group.Point == "" || m.group.IsRoot() {
		return 0, fs.ErrNotExist
	}
	return m.group.MemoryUsage()
}

// Limit returns the container's memory limit in bytes; 0 if it has none or it is unknown.
func (m Memory) Limit() int64 {
	if m.group.Point == "" || m.group.IsRoot() {
		return 0
	}
	n, err := m.group.MemoryLimit()
	if err != nil || n == cgroup.NoLimit {
		return 0
	}
	return n
}

// Last returns the most memory that the container has used, in bytes, and how many of its
// processes the kernel has killed for the limit. Each is 0 if it is unknown. The figures of
// a dead container exist for about 10 ms, until the engine removes its group.
func (m Memory) Last() (peak int64, oomKills int) {
	if m.group.Point == "" || m.group.IsRoot() {
		return 0, 0
	}
	oomKills, _ = m.group.OOMKills()
	peak, _ = m.group.MemoryPeak()
	return peak, oomKills
}

// Reclaim asks the kernel to reclaim n bytes of a live container; see cgroup.Group.Reclaim.
func (m Memory) Reclaim(ctx context.Context, n int64) error {
	if m.group.Point == "" || m.group.IsRoot() {
		return fmt.Errorf("the container's memory: %w", errors.ErrUnsupported)
	}
	return m.group.Reclaim(ctx, n)
}

// Empty makes the kernel reclaim the memory that is charged to a dead container's
// group. Otherwise the group stays as a dying one after the engine has removed it,
// and slows down reclaim (internal/hosts/doctor). The caller keeps the engine from
// removing the group until Empty returns. ctx ends it early. A group that is gone is
// no error. Empty does not wait for dirty pages, which stay charged.
func (m Memory) Empty(ctx context.Context) error {
	if m.group.Point == "" || m.group.IsRoot() {
		return nil
	}
	err := m.group.EmptyMemory(ctx)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, errors.ErrUnsupported):
		return nil
	case err != nil:
		return fmt.Errorf("empty the memory of %s: %w", m.group.Dir(), err)
	}
	return nil
}

// Freezer returns the container's control group that can be frozen.
func (t *Target) Freezer() (cgroup.Group, error) {
	if len(t.groups) == 0 {
		return cgroup.Group{}, errors.New("the container is in no control group with a freezer")
	}
	return t.groups[0], nil // see wanted
}

// Groups returns the control groups that have to be empty.
func (t *Target) Groups() []cgroup.Group { return t.groups }

// Alive reports whether any process of the container may still run. It asks the
// kernel; a failed read counts as alive.
func (t *Target) Alive() bool {
	empty, err := t.empty()
	return !t.init.Exited() || !empty || err != nil
}

// empty reports whether no live process is left in the container's groups.
func (t *Target) empty() (bool, error) {
	for _, g := range t.groups {
		if empty, err := g.Empty(); err != nil || !empty {
			return false, err
		}
	}
	return true, nil
}

// holdMounts keeps the container's mount namespace until Close. If it cannot be
// opened, the kernel removes it with its last process.
func (t *Target) holdMounts() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.mounts != nil {
		return
	}
	path := fmt.Sprintf("%s/%d/ns/mnt", proc.Host, t.init.Pid())
	if fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
		t.mounts = &fd
	}
}

// Close closes the handles on the container and, after a Kill, on its mount
// namespace. The kernel may take some milliseconds to remove the mounts. It may be
// called more than once.
func (t *Target) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	if t.mounts != nil {
		unix.Close(*t.mounts)
		t.mounts = nil
	}
	t.init.Close()
	if t.shim != nil {
		t.shim.Close()
	}
}

func (t *Target) String() string { return nameOf(t.ID, t.Name) }

func nameOf(id, name string) string {
	return cmp.Or(name, id[:min(minIDLen, len(id))])
}
