// Package nsmount attaches directories and files of this host to another mount
// namespace, mount_namespaces(7). It needs Linux 5.12 (mount_setattr(2)),
// CAP_SYS_ADMIN and CAP_SYS_CHROOT.
package nsmount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/threads"
)

// Mount is one thing to attach.
type Mount struct {
	Source   string // absolute path of a directory or a file in this namespace; it has to exist
	Target   string // absolute path in the other one; what is missing of it is made
	ReadOnly bool
}

// Attach attaches the mounts in the mount namespace of a process, in their order,
// with all that is mounted below the sources. They are private: what is mounted there
// later is not seen here, nor the other way round. After an error some may be
// attached. The caller makes sure that the pid is still whom it means (a pidfd that
// has not exited, asked after the call).
//
// Paths of targets are resolved as the process's own root has them, so its symbolic
// links lead nowhere else.
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
	// It cannot come back to a file system that it shares with others (setns(2)).
	return threads.Spend(func() error { return attach(ns, trees) })
}

// tree is a copy of mounts that is attached nowhere yet.
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

// attach works on a thread that is good for nothing else afterwards.
func attach(ns *os.File, trees []tree) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("have a root of our own: %w", err)
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

// makeTarget makes what is missing of the target's path, by plain calls: they act in
// the thread's own root.
func (t tree) makeTarget() error {
	dir := t.target
	if !t.dir {
		dir = path.Dir(dir)
	}
	if err := mkdirAll(dir); err != nil || t.dir {
		return err
	}
	fd, err := unix.Open(t.target, unix.O_CREAT|unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0o644)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func mkdirAll(dir string) error {
	if dir == "/" {
		return nil
	}
	err := unix.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrNotExist) {
		if err := mkdirAll(path.Dir(dir)); err != nil {
			return err
		}
		err = unix.Mkdir(dir, 0o755)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}
