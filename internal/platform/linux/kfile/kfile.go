// Package kfile reads and writes the kernel's small pseudo files (procfs, cgroupfs)
// with the fewest system calls: open, read or write, close. os.ReadFile adds an
// fstat, a second read and an epoll registration to each, which matters when a
// shutdown reads hundreds of files.
package kfile

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// ErrTooLong means that a file is longer than the caller's limit.
var ErrTooLong = errors.New("pseudo file is longer than expected")

// Read returns the contents of a pseudo file of at most limit bytes. The error is a
// *fs.PathError; errors.Is(err, fs.ErrNotExist) if the file's object is gone, whether
// the path has vanished (ENOENT) or the process or cgroup of the open file (ESRCH,
// ENODEV).
func Read(path string, limit int) ([]byte, error) {
	return read(unix.AT_FDCWD, path, limit, false)
}

// ReadRecord is Read of a file that the kernel writes as one record, as those of a control
// group are, except for its lists of processes and threads. It needs no read(2) that finds
// the end (fs/seq_file.c: seq_read_iter returns a whole record that fits).
func ReadRecord(path string, limit int) ([]byte, error) {
	return read(unix.AT_FDCWD, path, limit, true)
}

// Dir is an open directory of pseudo files. The kernel looks up each file by one name,
// and not by all names of a path.
type Dir struct{ fd int }

// OpenDir opens a directory. Errors are like those of Read. The caller closes it.
func OpenDir(path string) (Dir, error) {
	fd, err := open(unix.AT_FDCWD, path, unix.O_PATH|unix.O_DIRECTORY)
	return Dir{fd}, err
}

// Read is Read of a file in the directory.
func (d Dir) Read(name string, limit int) ([]byte, error) { return read(d.fd, name, limit, false) }

// ReadRecord is the function ReadRecord for a file in the directory.
func (d Dir) ReadRecord(name string, limit int) ([]byte, error) { return read(d.fd, name, limit, true) }

// Close closes the directory.
func (d Dir) Close() { _ = unix.Close(d.fd) } // nothing was written

func read(dir int, path string, limit int, record bool) ([]byte, error) {
	fd, err := open(dir, path, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	// Most files are short: they fit into a buffer on the stack, and only their content is
	// allocated.
	var short [4096]byte
	buf, n := short[:min(len(short), limit+1)], 0
	for {
		m, err := retry(func() (int, error) { return unix.Read(fd, buf[n:]) })
		if err != nil {
			return nil, pathError("read", path, err)
		}
		if n += m; n > limit {
			return nil, pathError("read", path, ErrTooLong)
		}
		if m == 0 || record && n < len(buf) { // a short read is not EOF: seq_file stops between records
			return bytes.Clone(buf[:n]), nil
		}
		if n == len(buf) {
			buf = append(buf, make([]byte, min(n, limit+1-n))...)
		}
	}
}

// Write writes value with one write(2), as pseudo files require. Errors are like
// those of Read.
func Write(path, value string) error {
	fd, err := open(unix.AT_FDCWD, path, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, err := retry(func() (int, error) { return unix.Write(fd, []byte(value)) }); err != nil {
		return pathError("write", path, err)
	}
	return nil
}

func open(dir int, path string, mode int) (int, error) {
	fd, err := retry(func() (int, error) { return unix.Openat(dir, path, mode|unix.O_CLOEXEC, 0) })
	if err != nil {
		return -1, pathError("open", path, err)
	}
	return fd, nil
}

// retry repeats a call that a signal interrupted.
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if err != unix.EINTR {
			return n, err
		}
	}
}

func pathError(op, path string, err error) error {
	if err == unix.ESRCH || err == unix.ENODEV {
		err = fmt.Errorf("%w (%w)", fs.ErrNotExist, err)
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}
