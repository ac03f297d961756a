// Package inroot opens files below the root directory of another process, such as the init
// of a container, from outside of its namespaces.
//
// The kernel resolves every path with that root as its own (openat2(2), RESOLVE_IN_ROOT):
// neither "..", nor a symbolic link, nor a race with the other process leaves it. It sees
// the mounts of the other process. Magic links of proc(5) are refused.
package inroot

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Errors that callers decide by; they come wrapped.
var (
	// ErrHostRoot means that the process has this process's mount namespace: its root is
	// no container's. That is so for a process that runs a virtual machine.
	ErrHostRoot = errors.New("the process has the mounts of the host")
	// ErrUnsupported means that the kernel has no openat2: it is older than Linux 5.6.
	ErrUnsupported = errors.New("the kernel has no openat2")
)

// Root is the root directory of a process. Any goroutine may use it.
type Root struct {
	dir        *os.File // O_PATH
	own        bool     // of this process
	UIDs, GIDs Mapping
}

// Own opens the root of this process. Its paths are resolved by open(2), which older kernels
// and gVisor have: the process is as confined as it is. Mappings are the identity.
func Own() (*Root, error) {
	fd, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the root: %w", err)
	}
	all := Mapping{{count: 1<<32 - 1}}
	return &Root{dir: os.NewFile(uintptr(fd), "/"), own: true, UIDs: all, GIDs: all}, nil
}

// IsOwn reports whether the root is that of this process.
func (r *Root) IsOwn() bool { return r.own }

// Open opens the root of the process with the pid. The caller checks afterwards that the
// process still lives: otherwise another process may have had the pid. An open Root keeps
// the mounts of the process.
func Open(pid int) (*Root, error) {
	p := "/proc/" + strconv.Itoa(pid)
	if err := foreign(p); err != nil {
		return nil, fmt.Errorf("open the root of process %d: %w", pid, err)
	}
	r := &Root{}
	var err error
	if r.UIDs, err = readMapping(p + "/uid_map"); err != nil {
		return nil, err
	}
	if r.GIDs, err = readMapping(p + "/gid_map"); err != nil {
		return nil, err
	}
	fd, err := unix.Open(p+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the root of process %d: %w", pid, err)
	}
	r.dir = os.NewFile(uintptr(fd), "/")
	f, err := r.Open("/", unix.O_PATH)
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("open the root of process %d: %w", pid, err)
	}
	f.Close()
	return r, nil
}

// foreign returns ErrHostRoot for a process in the mount namespace of this one.
func foreign(p string) error {
	ours, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return err
	}
	theirs, err := os.Readlink(p + "/ns/mnt")
	if err == nil && ours == theirs {
		err = ErrHostRoot
	}
	return err
}

// Close closes the root. Files that were opened stay open.
func (r *Root) Close() { r.dir.Close() }

// attempts bounds how often an open is tried that a concurrent rename or mount has
// interrupted (openat2(2), EAGAIN).
const attempts = 256

// Open opens a path below the root, with flags of open(2). Without unix.O_NOFOLLOW a final
// link is followed. The caller must not open devices and named pipes but with unix.O_PATH.
// Errors are of openat2(2): unix.EAGAIN if the path does not stay the same for long
// enough. ErrUnsupported.
func (r *Root) Open(path string, flags int) (*os.File, error) {
	if r.own {
		return open1(path, path, flags)
	}
	return open2(r.dir, path, flags, unix.RESOLVE_IN_ROOT)
}

// OpenBelow opens a path below the directory dir, which has no symbolic link in it. In the
// root of this process links are followed, except the last one.
func (r *Root) OpenBelow(dir *os.File, path string, flags int) (*os.File, error) {
	if r.own {
		return open1(Self(dir)+"/"+path, path, flags|unix.O_NOFOLLOW)
	}
	return open2(dir, path, flags, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS)
}

// open1 opens a path of this process, for a file with a name.
func open1(path, name string, flags int) (*os.File, error) {
	for {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
		if err == nil {
			return os.NewFile(uintptr(fd), name), nil
		}
		if err != unix.EINTR {
			return nil, &os.PathError{Op: "open", Path: name, Err: err}
		}
	}
}

func open2(dir *os.File, path string, flags int, resolve uint64) (*os.File, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: resolve | unix.RESOLVE_NO_MAGICLINKS}
	for i := 0; ; i++ {
		fd, err := unix.Openat2(int(dir.Fd()), path, &how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), path), nil
		case err == unix.EINTR, err == unix.EAGAIN && i < attempts:
		case err == unix.ENOSYS:
			return nil, ErrUnsupported
		default:
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

// Reopen opens the file again that f refers to, which may be an O_PATH descriptor. No path
// is resolved: a file that was swapped meanwhile is not opened.
func Reopen(f *os.File, flags int) (*os.File, error) {
	return open1(Self(f), f.Name(), flags|unix.O_NOCTTY)
}

// Self returns a path of this process that stands for the open file f, for system calls
// that take a path and follow links.
func Self(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// FSType returns the magic number of the file system of f (statfs(2)).
func FSType(f *os.File) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &s); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: f.Name(), Err: err}
	}
	return int64(s.Type), nil
}
