// Package flock locks files and directories that others may remove or replace
// meanwhile, and tells directories of living processes from those of dead ones. A
// lock is flock(2)'s: the kernel gives it back when its holder dies.
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

// Open opens a file or directory, with a flag as os.OpenFile takes it, locks it
// without waiting, and makes sure that it is still the one at its path. The lock
// ends when the file is closed. unix.EWOULDBLOCK where another has it,
// fs.ErrNotExist where it was removed or replaced before it was locked. Any
// goroutine may call it.
func Open(path string, flag int) (*os.File, error) {
	f, err := os.OpenFile(path, flag, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
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

// Close lets go of the lock.
func (d *Dir) Close() error { return d.lock.Close() }

// openDir locks a directory.
func openDir(path string) (*Dir, error) {
	f, err := Open(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	return &Dir{path, f}, nil
}

// MkdirTemp makes a directory with a name of its own that begins with prefix, in
// base, and locks it: it is this process's as long as that lives.
func MkdirTemp(base, prefix string) (*Dir, error) {
	// Who looks for the dead may take a new directory for one of theirs until
	// it is locked; then the next try has another name.
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

// Dead calls f with each directory in base whose name begins with prefix, that
// this user made and that nobody has locked, locked by us. f closes it.
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
			continue // its process lives, or it is just gone
		}
		failed = append(failed, f(d))
	}
	return errors.Join(failed...)
}

// ours reports whether this user made a directory: where all may write, a name
// alone proves nothing.
func ours(e fs.DirEntry) bool {
	fi, err := e.Info()
	if err != nil {
		return false
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}
