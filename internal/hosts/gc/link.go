package gc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Bounds of a walk through files that somebody else's image named.
const (
	maxDepth = 100
	maxNames = 5_000_000
)

// tally is what a walk found.
type tally struct {
	Names  int   // of files, links and directories: the engine takes each away
	Linked int   // of them, by a second name in the trash
	Bytes  int64 // on disk
}

// walker goes through directories without following links, and links every
// regular file into a batch, where there is one.
type walker struct {
	ctx   context.Context
	wait  func(context.Context) error // before each handful of names
	batch *batch                      // nil: only count
	tally
}

// errFull says that nothing more can be linked.
var errFull = errors.New("no room to link files")

func (w *walker) walk(dir string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("look at the files of a layer: %w", &os.PathError{Op: "open", Path: dir, Err: err})
	}
	if err := w.directory(os.NewFile(uintptr(fd), dir), 0); err != nil {
		return fmt.Errorf("look at the files of a layer: %w", err)
	}
	return nil
}

// directory goes through one directory, and closes it.
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
			return fmt.Errorf("there are over %d names", maxNames)
		}
	}
}

func (w *walker) entry(d *os.File, e os.DirEntry, depth int) error {
	if e.IsDir() {
		if depth >= maxDepth {
			return nil // what is below stays with the engine
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
		// A full disk; a quota of the project's (EXDEV: ext4 and xfs do
		// not link across projects); an immutable file.
		return fmt.Errorf("%w: %w", errFull, err)
	case errors.Is(err, unix.EMLINK), errors.Is(err, unix.ENOENT):
		// The engine frees this one itself, or it is gone.
	default:
		return err
	}
	return nil
}
