// Package frozen keeps notes of the control groups that a process has frozen, so that
// another process can thaw them. A note is a file with the path of the group's freezer.
package frozen

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"holdfast/internal/platform/linux/kfile"
	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/proc"
)

// Notes are the notes of one process. Any goroutine may call the methods.
type Notes struct{ root, dir string }

// Open returns the notes of this process below root. It creates nothing.
func Open(root string) (Notes, error) {
	s, err := proc.Host.Stat(os.Getpid())
	if err != nil {
		return Notes{}, fmt.Errorf("notes of frozen control groups: %w", err)
	}
	return Notes{root, filepath.Join(root, fmt.Sprintf("%d-%d", s.Pid, s.Start))}, nil
}

// Dir is the directory of the notes.
func (n Notes) Dir() string { return n.dir }

// Add notes a freezer before it is used. name is unique among the notes.
func (n Notes) Add(name, freezer string) error {
	err := os.WriteFile(filepath.Join(n.dir, name), []byte(freezer), 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(n.dir, 0o700); err == nil {
			err = os.WriteFile(filepath.Join(n.dir, name), []byte(freezer), 0o600)
		}
	}
	return err
}

// Remove removes a note, if it exists.
func (n Notes) Remove(name string) error {
	err := os.Remove(filepath.Join(n.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// ThawEarlier thaws what processes have noted that do not live any more. It returns the
// number of groups.
func (n Notes) ThawEarlier() (int, error) {
	entries, err := os.ReadDir(n.root)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	thawed := 0
	for _, e := range entries {
		dir := filepath.Join(n.root, e.Name())
		if dir == n.dir || lives(e.Name()) {
			continue
		}
		k, e := Thaw(dir)
		thawed, err = thawed+k, errors.Join(err, e)
	}
	return thawed, err
}

// lives reports whether the process with a directory of this name runs.
func lives(name string) bool {
	pid, start, _ := strings.Cut(name, "-")
	p, err1 := strconv.Atoi(pid)
	s, err2 := strconv.ParseUint(start, 10, 64)
	if errors.Join(err1, err2) != nil {
		return false
	}
	h, err := pidfd.OpenStarted(p, s)
	if err != nil {
		return !errors.Is(err, pidfd.ErrGone) && !errors.Is(err, pidfd.ErrReused)
	}
	h.Close()
	return true
}

// Thaw thaws the groups that the notes in a directory name, and removes the notes and the
// directory. It returns the number of groups. A group or a directory that is gone is no
// error.
func Thaw(dir string) (int, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	n := 0
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if failed := thawNoted(path); failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		n++
		err = errors.Join(err, os.Remove(path))
	}
	if err != nil {
		return n, fmt.Errorf("thaw the control groups noted in %s: %w", dir, err)
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return n, err
	}
	return n, nil
}

func thawNoted(path string) error {
	b, err := kfile.Read(path, 4096)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	file := string(b) // one that was cut off is of a group that was not frozen yet
	if !filepath.IsAbs(file) || filepath.Clean(file) != file {
		return nil
	}
	switch filepath.Base(file) {
	case "cgroup.freeze":
		err = kfile.Write(file, "0")
	case "freezer.state":
		err = kfile.Write(file, "THAWED")
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
