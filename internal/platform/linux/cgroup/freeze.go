package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/kfile"
)

// errNotFrozen means that not all processes have stopped in time.
var errNotFrozen = errors.New("not all processes froze in time")

// frozenPoll is how often the state is read while a group freezes.
const frozenPoll = 200 * time.Microsecond

// Freeze stops every process in the group and below it, and waits at most limit until
// all have stopped. errors.ErrUnsupported if the group has no freezer (another v1
// hierarchy); ErrGuard as with Kill.
func (g Group) Freeze(limit time.Duration) error {
	if err := g.BeginFreeze(); err != nil {
		return ignoreGone(err)
	}
	for until := time.Now().Add(limit); ; time.Sleep(frozenPoll) {
		frozen, err := g.Frozen()
		switch {
		case err != nil:
			return ignoreGone(err)
		case frozen:
			return nil
		case time.Now().After(until):
			return fmt.Errorf("freeze %s: %w", g.Dir(), errNotFrozen)
		}
	}
}

// BeginFreeze is Freeze without the wait. A group that is gone is fs.ErrNotExist.
func (g Group) BeginFreeze() error {
	if err := g.guard(); err != nil {
		return err
	}
	return g.setFrozen(g.Dir(), true)
}

// EndFreeze continues the group. Groups below it that are frozen themselves stay so. A
// group that is gone is no error.
func (g Group) EndFreeze() error {
	if g.IsRoot() {
		return nil // a root cannot be frozen
	}
	return ignoreGone(g.setFrozen(g.Dir(), false))
}

// FreezerFile is the file that freezes the group.
func (g Group) FreezerFile() string {
	if g.V2 {
		return g.Dir() + "/cgroup.freeze"
	}
	return g.Dir() + "/freezer.state"
}

// Thaw continues the group and every group below it. A group that is gone, or that
// has no freezer, is no error.
func (g Group) Thaw() error {
	if g.IsRoot() {
		return nil // a root cannot be frozen
	}
	err := g.each(func(dir string) error { return g.setFrozen(dir, false) })
	if errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	return err
}

// setFrozen writes the state of the group, or of one below it, in its directory.
func (g Group) setFrozen(dir string, on bool) error {
	file, value := "/cgroup.freeze", "0"
	if on {
		value = "1"
	}
	if !g.V2 {
		if !g.Has("freezer") {
			return fmt.Errorf("freeze %s: %w", dir, errors.ErrUnsupported)
		}
		file, value = "/freezer.state", "THAWED"
		if on {
			value = "FROZEN"
		}
	}
	return kfile.Write(dir+file, value)
}

// Frozen reports whether the whole group is stopped by a freezer, its own or one
// above it.
func (g Group) Frozen() (bool, error) {
	if g.V2 {
		b, err := kfile.Read(g.Dir()+"/cgroup.events", 4096)
		return ParseEvents(b)["frozen"] == 1, err
	}
	if !g.Has("freezer") {
		return false, nil
	}
	b, err := kfile.Read(g.Dir()+"/freezer.state", 4096)
	return strings.TrimSpace(string(b)) == "FROZEN", err
}

// FreezerAbove reports whether a group above this one is frozen, so that Thaw
// cannot help (v1: freezer.parent_freezing; v2 kills frozen processes anyway).
func (g Group) FreezerAbove() bool {
	if g.V2 || !g.Has("freezer") {
		return false
	}
	b, err := kfile.Read(g.Dir()+"/freezer.parent_freezing", 4096)
	return err == nil && strings.TrimSpace(string(b)) == "1"
}

// WaitChange returns when one of the groups may have become empty, at the latest
// after limit. v2 groups notify (cgroup.events, POLLPRI). v1 groups do not, so with a
// v1 group it returns after a millisecond.
func WaitChange(groups []Group, limit time.Duration) error {
	var fds []unix.PollFd
	defer func() {
		for _, f := range fds {
			unix.Close(int(f.Fd))
		}
	}()
	for _, g := range groups {
		if !g.V2 {
			limit = min(limit, time.Millisecond)
			continue
		}
		fd, err := unix.Open(g.Dir()+"/cgroup.events", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return fmt.Errorf("open %s/cgroup.events: %w", g.Dir(), err)
		}
		fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLPRI})
		// kernfs notifies of changes since the last read; this read sees earlier
		// changes.
		var buf [256]byte
		n, err := unix.Read(fd, buf[:])
		if err != nil || ParseEvents(buf[:max(n, 0)])["populated"] == 0 {
			return nil
		}
	}
	ts := unix.NsecToTimespec(max(limit, 0).Nanoseconds())
	if _, err := unix.Ppoll(fds, &ts, nil); err != nil && err != unix.EINTR {
		return fmt.Errorf("wait for cgroups: %w", err)
	}
	return nil
}
