package symbol

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/perf/elffile"
)

// ErrNotRegular means that a path is not a regular file. Opening a device or a pipe
// can have side effects or block, which an untrusted process must not cause.
var ErrNotRegular = errors.New("not a regular file")

// OpenMapped opens the file that a living process has mapped, through the kernel's
// link to it, so that neither its path nor its deletion matters.
func OpenMapped(procfs string, pid int, begin, end uint64) (*os.File, error) {
	path := fmt.Sprintf("%s/%d/map_files/%x-%x", procfs, pid, begin, end)
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return reopen(fd, path)
}

// VDSO is the path of the mapping of the kernel's library in every process.
const VDSO = "[vdso]"

// File is an open program or library.
type File interface {
	io.ReaderAt
	io.Closer
}

// OpenMapping opens the file of a mapping: OpenMapped, or OpenVDSO.
func OpenMapping(procfs string, pid int, m Mapping) (File, error) {
	if m.Path == VDSO {
		return OpenVDSO()
	}
	return OpenMapped(procfs, pid, m.Begin, m.End)
}

// OpenVDSO opens the kernel's library.
func OpenVDSO() (File, error) {
	b, err := elffile.VDSO()
	if err != nil {
		return nil, err
	}
	return struct {
		*bytes.Reader
		io.Closer
	}{bytes.NewReader(b), io.NopCloser(nil)}, nil
}

// OpenIn opens a file by its path in a process's root, which symbolic links cannot
// leave. Linux 5.6.
func OpenIn(procfs string, pid int, path string) (*os.File, error) {
	return openBelow(procfs+"/"+strconv.Itoa(pid)+"/root", path)
}

func openBelow(root, path string) (*os.File, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer unix.Close(dir)
	fd, err := unix.Openat2(dir, path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: root + path, Err: err}
	}
	return reopen(fd, root+path)
}

// reopen opens an O_PATH descriptor for reading if it is a regular file, and closes
// it.
func reopen(fd int, path string) (*os.File, error) {
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, &os.PathError{Op: "open", Path: path, Err: ErrNotRegular}
	}
	again, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(again), path), nil
}
