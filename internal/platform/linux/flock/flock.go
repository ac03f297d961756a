// Package flock locks files and directories that other processes may remove or
// replace, and distinguishes directories of living processes from those of dead ones.
// Locks are those of flock(2): the kernel releases them when the holder dies.
package flock

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Lock opens a file or directory, with a flag as os.OpenFile takes it, and locks it; how
// is that of flock(2). The lock ends when the file is closed. unix.EWOULDBLOCK if how has
// unix.LOCK_NB and another process has the lock. Any goroutine may call it.
func Lock(path string, flag, how int) (*os.File, error) {
	f, err := os.OpenFile(path, flag, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), how); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Open opens a file or directory, with a flag as os.OpenFile takes it, locks it
// without waiting, and checks that it is still the file at its path. The lock ends
// when the file is closed. unix.EWOULDBLOCK if another process has the lock,
// fs.ErrNotExist if the file was removed or replaced before it was locked. Any
// goroutine may call it.
func Open(path string, flag int) (*os.File, error) {
	f, err := Lock(path, flag, unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		return nil, err
	}
	locked, err := f.Stat()
	if err == nil {
		var atPath os.FileInfo
		if atPath, err = os.Lstat(path); err == nil && !os.SameFile(locked, atPath) {
			err = fs.ErrNotExist
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Dir is a locked directory.
type Dir struct {
	Path string
	lock *os.File
}

// Name is the last element of the path.
func (d *Dir) Name() string { return filepath.Base(d.Path) }

// Close releases the lock.
func (d *Dir) Close() error { return d.lock.Close() }

// openDir locks a directory.
func openDir(path string) (*Dir, error) {
	f, err := Open(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	return &Dir{path, f}, nil
}

// MkdirTemp makes a directory in base with a new name that begins with prefix, and
// locks it for the life of this process.
func MkdirTemp(base, prefix string) (*Dir, error) {
	// Dead in another process may remove a new directory before it is locked; the
	// next attempt has another name.
	for range 10 {
		path, err := os.MkdirTemp(base, prefix)
		if err != nil {
			return nil, err
		}
		if d, err := openDir(path); err == nil {
			return d, nil
		}
	}
	return nil, errors.New("no directory could be locked")
}

// Dead locks each directory in base with a name that begins with prefix, if this user
// made it and no process has it locked, and calls f with it. f closes it.
func Dead(base, prefix string, f func(*Dir) error) error {
	entries, err := os.ReadDir(base)
	if err != nil {
		return err
	}
	var failed []error
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), prefix) || !e.IsDir() || !ours(e) {
			continue
		}
		d, err := openDir(filepath.Join(base, e.Name()))
		if err != nil {
			continue // its process lives, or it has just been removed
		}
		failed = append(failed, f(d))
	}
	return errors.Join(failed...)
}

// ours reports whether this user made a directory: in a world-writable directory a
// name proves nothing.
func ours(e fs.DirEntry) bool {
	fi, err := e.Info()
	if err != nil {
		return false
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}
