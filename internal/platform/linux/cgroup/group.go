package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/kfile"
	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/proc"
)

// ErrGuard means that a group must not be killed or frozen: it is a root, or contains
// this process.
var ErrGuard = errors.New("refusing to touch this cgroup")

// maxProcs bounds cgroup.procs: 4 million pids (the kernel's PID_MAX_LIMIT) of
// seven digits and a newline.
const maxProcs = 32 << 20

// Group is one cgroup of one hierarchy. It is a value. The group may be gone; then it
// counts as empty.
type Group struct {
	Point       string // mount point of the hierarchy
	Path        string // below it, absolute: /docker/<id>
	V2          bool
	Controllers []string // v1 only
}

// Dir is the group's directory.
func (g Group) Dir() string { return path.Join(g.Point, g.Path) }

// IsRoot reports whether the group is the root of what is mounted.
func (g Group) IsRoot() bool { return path.Clean("/"+g.Path) == "/" }

// Has reports whether a controller is available to the group: the v1 hierarchy's, or
// one that is enabled for a v2 group.
func (g Group) Has(controller string) bool {
	if !g.V2 {
		return slices.Contains(g.Controllers, controller)
	}
	b, err := kfile.Read(g.Dir()+"/cgroup.controllers", 4096)
	return err == nil && slices.Contains(strings.Fields(string(b)), controller)
}

// Topmost returns the outermost group on the way to g, g included, whose own
// name matches.
func (g Group) Topmost(match func(name string) bool) (Group, bool) {
	parts := strings.Split(strings.Trim(g.Path, "/"), "/")
	for i, name := range parts {
		if name != "" && match(name) {
			g.Path = "/" + strings.Join(parts[:i+1], "/")
			return g, true
		}
	}
	return Group{}, false
}

// Contains reports whether other is g or lies below it.
func (g Group) Contains(other Group) bool {
	return g.Point == other.Point && (g.IsRoot() || other.Path == g.Path || strings.HasPrefix(other.Path, g.Path+"/"))
}

// Procs lists the pids in the group and all groups below it. A process outside this
// pid namespace is listed as 0. Zombies are not listed. With an error, for example
// because there are too many groups, the list is incomplete.
func (g Group) Procs() ([]int, error) {
	var pids []int
	err := g.each(func(dir string) error {
		in, err := procsIn(dir)
		pids = append(pids, in...)
		return err
	})
	return pids, err
}

// ParseProcs reads cgroup.procs.
func ParseProcs(b []byte) ([]int, error) {
	var pids []int
	for line := range bytes.Lines(b) {
		pid, err := strconv.Atoi(string(bytes.TrimSuffix(line, []byte("\n"))))
		if err != nil || pid < 0 {
			return pids, fmt.Errorf("cgroup.procs: %w: %q", ErrFormat, line)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// Walk calls visit for the group and for each group below it, parents before their
// children; depth is the number of levels below g. If visit returns fs.SkipDir, or an
// error that means that the group is gone, Walk leaves out the groups below that one.
// fs.SkipAll ends the walk without an error. The walk leaves out groups whose path is
// longer than PATH_MAX, and has no other bound.
func (g Group) Walk(visit func(g Group, depth int) error) error {
	if err := g.walk(0, visit); !errors.Is(err, fs.SkipAll) {
		return err
	}
	return nil
}

func (g Group) walk(depth int, visit func(Group, int) error) error {
	err := visit(g, depth)
	if err != nil {
		if errors.Is(err, fs.SkipDir) {
			return nil
		}
		return ignoreUnreachable(err)
	}
	children, err := g.Children()
	for _, c := range children {
		if err := c.walk(depth+1, visit); err != nil {
			return err
		}
	}
	return ignoreUnreachable(err)
}

// Children returns the groups directly below g, or none if g is gone.
func (g Group) Children() ([]Group, error) {
	// A directory has a link from each child directory. With only two links it has no
	// children, and need not be listed.
	var st unix.Stat_t
	if err := unix.Stat(g.Dir(), &st); err != nil || st.Nlink == 2 {
		return nil, ignoreGone(err)
	}
	entries, err := os.ReadDir(g.Dir())
	if err != nil {
		return nil, ignoreGone(err)
	}
	var cs []Group
	for _, e := range entries {
		if e.IsDir() {
			c := g
			c.Path = path.Join(g.Path, e.Name())
			cs = append(cs, c)
		}
	}
	return cs, nil
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// Empty reports whether no live process is left in the group or below it. On v2 this
// is "populated 0" in cgroup.events: the last process has closed its files. A group
// that is gone is empty.
func (g Group) Empty() (bool, error) {
	if !g.V2 {
		empty := true
		err := g.each(func(dir string) error {
			pids, err := procsIn(dir)
			if len(pids) > 0 {
				empty, err = false, fs.SkipAll
			}
			return err
		})
		return empty, err
	}
	b, err := kfile.Read(g.Dir()+"/cgroup.events", 4096)
	if errors.Is(err, fs.ErrNotExist) {
		if _, e := os.Stat(g.Dir()); e == nil {
			return false, fmt.Errorf("%s is a root: %w", g.Dir(), ErrGuard)
		}
		return true, nil
	}
	if err != nil {
		return false, err
	}
	n, ok := ParseEvents(b)["populated"]
	if !ok {
		return false, fmt.Errorf("%s/cgroup.events: %w: %q", g.Dir(), ErrFormat, b)
	}
	return n == 0, nil
}

// ParseEvents reads the "name number" lines of cgroup.events, cgroup.stat or
// memory.stat, and skips others.
func ParseEvents(b []byte) map[string]int64 {
	m := make(map[string]int64)
	for line := range bytes.Lines(b) {
		k, v, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		if n, err := strconv.ParseInt(v, 10, 64); err == nil {
			m[k] = n
		}
	}
	return m
}

// CanKill reports whether the kernel has cgroup.kill for the group (v2, since
// Linux 5.14).
func (g Group) CanKill() bool {
	return g.V2 && !g.IsRoot() && unix.Access(g.Dir()+"/cgroup.kill", unix.W_OK) == nil
}

// Kill sends SIGKILL to every process in the group and below it. On v2 the kernel
// does that atomically, also for forks (cgroup.kill). On v1 and on kernels without
// cgroup.kill, Kill freezes the group, kills its processes one by one and thaws it.
// That also covers forks, but a process that cannot freeze keeps the group from
// freezing completely, so callers repeat Kill until the group is Empty. A group that
// is gone is no error. ErrGuard.
func (g Group) Kill() error {
	if err := g.guard(); err != nil {
		return err
	}
	if g.V2 {
		err := kfile.Write(g.Dir()+"/cgroup.kill", "1")
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	// Without a freezer (v1) Kill still kills; callers repeat until the group is
	// empty.
	freezeErr := g.Freeze(20 * time.Millisecond)
	killErr := g.killEach()
	return errors.Join(killErr, ignoreUnsupported(freezeErr), g.Thaw())
}

func ignoreUnsupported(err error) error {
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, errNotFrozen) {
		return nil
	}
	return err
}

// killEach kills the listed processes by pidfd. It opens the pidfds first and then
// lists again, so that an unrelated process that reused a pid is never hit: a process
// that lives after its pidfd was opened has kept its pid.
func (g Group) killEach() error {
	before, err := g.Procs()
	if err != nil {
		return err
	}
	held := make(map[int]*pidfd.Process, len(before))
	defer func() {
		for _, p := range held {
			p.Close()
		}
	}()
	for _, pid := range before {
		if pid == 0 { // outside this pid namespace: it cannot be signalled
			continue
		}
		p, openErr := pidfd.Open(pid)
		switch {
		case openErr == nil:
			held[pid] = p
		case !errors.Is(openErr, pidfd.ErrGone):
			err = errors.Join(err, openErr)
		}
	}
	after, listErr := g.Procs()
	err = errors.Join(err, listErr)
	for _, pid := range after {
		if p := held[pid]; p != nil {
			if e := p.Signal(unix.SIGKILL); !errors.Is(e, pidfd.ErrGone) {
				err = errors.Join(err, e)
			}
		}
	}
	return err
}

// guard refuses roots and groups that contain this process.
func (g Group) guard() error {
	if g.IsRoot() {
		return fmt.Errorf("%s is the root of its hierarchy: %w", g.Dir(), ErrGuard)
	}
	inside, err := g.inside()
	if err == nil && inside {
		err = fmt.Errorf("%s contains this process: %w", g.Dir(), ErrGuard)
	}
	return err
}

// inside reports whether this process is in the group or below it. It does not walk
// through the groups below, which may be many: it then compares the path of its own group,
// at the price of reading all mounts of this host.
func (g Group) inside() (bool, error) {
	var st unix.Stat_t
	if err := unix.Stat(g.Dir(), &st); err != nil {
		return false, ignoreGone(err)
	}
	if st.Nlink == 2 {
		pids, err := procsIn(g.Dir())
		return slices.Contains(pids, os.Getpid()), ignoreGone(err)
	}
	mounts, err := Find(proc.Host)
	if err != nil {
		return false, err
	}
	own, err := mounts.Of(proc.Host, os.Getpid())
	return slices.ContainsFunc(own, g.Contains), err
}
