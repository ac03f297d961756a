package gc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Bounds of a walk through files, because any image may have created them.
const (
	maxDepth = 100
	maxNames = 5_000_000
)

// tally is the result of a walk.
type tally struct {
	Names  int   // files, links and directories, each of which the engine unlinks
	Linked int   // files that have a second name in the trash
	Bytes  int64 // on disk
}

// walker walks directories without following links. If batch is set, it links
// every regular file into the batch.
type walker struct {
	ctx   context.Context
	wait  func(context.Context) error // called before each group of names
	batch *batch                      // nil: only count
	tally
}

// errFull means that no more files can be linked.
var errFull = errors.New("no room to link files")

func (w *walker) walk(dir string) error {
	d, err := openDir(dir)
	if err == nil {
		err = w.directory(d, 0)
	}
	if err != nil {
		return fmt.Errorf("read the files of a layer: %w", err)
	}
	return nil
}

// openDir opens a directory, and no link to one.
func openDir(path string) (*os.File, error) {
	return os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}

// directory walks one directory and closes d.
func (w *walker) directory(d *os.File, depth int) error {
	defer d.Close()
	w.Names++
	for {
		if err := w.wait(w.ctx); err != nil {
			return err
		}
		entries, err := d.ReadDir(256)
		for _, e := range entries {
			if err := w.entry(d, e, depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if w.Names > maxNames {
			return fmt.Errorf("more than %d names", maxNames)
		}
	}
}

func (w *walker) entry(d *os.File, e os.DirEntry, depth int) error {
	if e.IsDir() {
		if depth >= maxDepth {
			return nil // the engine frees what is deeper
		}
		fd, err := unix.Openat(int(d.Fd()), e.Name(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return err
		}
		return w.directory(os.NewFile(uintptr(fd), e.Name()), depth+1)
	}
	w.Names++
	if !e.Type().IsRegular() {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstatat(int(d.Fd()), e.Name(), &st, unix.AT_SYMLINK_NOFOLLOW); err == nil {
		w.Bytes += st.Blocks * 512
	}
	if w.batch == nil {
		return nil
	}
	switch err := w.batch.add(int(d.Fd()), e.Name()); {
	case err == nil:
		w.Linked++
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EXDEV), errors.Is(err, unix.EPERM):
		// The disk is full, a project quota applies (EXDEV: ext4 and xfs do not
		// link across projects), or the file is immutable.
		return fmt.Errorf("%w: %w", errFull, err)
	case errors.Is(err, unix.EMLINK), errors.Is(err, unix.ENOENT):
		// The engine frees this file itself, or the file no longer exists.
	default:
		return err
	}
	return nil
}
