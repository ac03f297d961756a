// Package nsmount attaches directories and files of this mount namespace to another
// one (mount_namespaces(7)). It needs Linux 5.12 (mount_setattr(2)), CAP_SYS_ADMIN
// and CAP_SYS_CHROOT.
package nsmount

import (
	"fmt"
	"os"
	"path"
	"strconv"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/threads"
)

// Mount is a directory or file to attach.
type Mount struct {
	Source   string // absolute path of a directory or a file in this namespace; it has to exist
	Target   string // absolute path in the other one; missing directories are made
	ReadOnly bool
}

// Attach attaches the mounts in the mount namespace of a process, in their order,
// with all mounts below the sources. They are private: later mounts on one side do
// not appear on the other. After an error some may be attached. The caller makes sure
// that the pid still belongs to the process it means, by checking after the call that
// a pidfd of it has not exited.
//
// Targets are resolved in the process's own root, which symbolic links cannot leave.
func Attach(pid int, mounts []Mount) error {
	ns, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/mnt")
	if err != nil {
		return fmt.Errorf("attach mounts: %w", err)
	}
	defer ns.Close()
	var trees []tree
	defer func() {
		for _, t := range trees {
			unix.Close(t.fd)
		}
	}()
	for _, m := range mounts {
		t, err := clone(m)
		if err != nil {
			return fmt.Errorf("attach %s: %w", m.Source, err)
		}
		trees = append(trees, t)
	}
	// The thread cannot return to the shared file system state (setns(2)).
	return threads.Spend(func() error { return attach(ns, trees) })
}

// tree is a detached copy of mounts.
type tree struct {
	fd     int
	target string
	dir    bool
}

func clone(m Mount) (_ tree, err error) {
	if !path.IsAbs(m.Source) || !path.IsAbs(m.Target) {
		return tree{}, fmt.Errorf("%q and %q have to be absolute paths", m.Source, m.Target)
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, m.Source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return tree{}, fmt.Errorf("open_tree: %w", err)
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	attr := unix.MountAttr{Propagation: unix.MS_PRIVATE}
	if m.ReadOnly {
		attr.Attr_set = unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		return tree{}, fmt.Errorf("mount_setattr: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return tree{}, err
	}
	return tree{fd: fd, target: path.Clean(m.Target), dir: st.Mode&unix.S_IFMT == unix.S_IFDIR}, nil
}

// attach runs on a thread that cannot be used for anything else afterwards.
func attach(ns *os.File, trees []tree) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare the root: %w", err)
	}
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter a mount namespace: %w", err)
	}
	for _, t := range trees {
		if err := t.attach(); err != nil {
			return fmt.Errorf("attach at %s: %w", t.target, err)
		}
	}
	return nil
}

func (t tree) attach() error {
	if err := t.makeTarget(); err != nil {
		return err
	}
	if err := unix.MoveMount(t.fd, "", unix.AT_FDCWD, t.target, unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_SYMLINKS); err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	return nil
}

// makeTarget makes the missing part of the target's path, by plain calls, which act
// in the thread's root.
func (t tree) makeTarget() error {
	dir := t.target
	if !t.dir {
		dir = path.Dir(dir)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil || t.dir {
		return err
	}
	fd, err := unix.Open(t.target, unix.O_CREAT|unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0o644)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}
