package gc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// trash is a directory on the file system of the engine's layers. It holds second
// names of files until the files are freed. The caller of its methods holds the
// collector's lock.
type trash struct {
	dir string // <data root>/holdfast-gc/trash
}

// ownDir is the directory below an engine's data root. Engines do not touch names
// that they do not know.
const ownDir = "holdfast-gc"

const readme = `Holdfast's garbage collection keeps second names of files here that it is about
to free, so that the engine does not wait for them. Everything below trash/ may
be deleted while no ` + "`holdfast`" + ` runs.
`

// openTrash makes the directory. It is an error if the directory is on another
// file system than the layers, because nothing could be linked there.
func openTrash(dataRoot, trees string) (*trash, error) {
	t := &trash{dir: filepath.Join(dataRoot, ownDir, "trash")}
	if err := os.MkdirAll(t.dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the trash directory: %w", err)
	}
	mark := filepath.Join(dataRoot, ownDir, "README")
	if _, err := os.Lstat(mark); errors.Is(err, fs.ErrNotExist) {
		_ = os.WriteFile(mark, []byte(readme), 0o600) // only informative; fails on a full disk
	}
	var here, there unix.Stat_t
	if err := unix.Stat(t.dir, &here); err != nil {
		return nil, fmt.Errorf("stat the trash directory: %w", err)
	}
	if err := unix.Stat(trees, &there); err != nil {
		return nil, fmt.Errorf("stat the engine's layers: %w", err)
	}
	if here.Dev != there.Dev {
		return nil, fmt.Errorf("the engine's layers are on another file system than %s", dataRoot)
	}
	return t, nil
}

// batch holds the files that are linked away for one removal.
type batch struct {
	dir    string
	newest *os.File // the newest directory below dir; nil before the first file
	files  int      // in the newest directory
	parts  int
}

// perDirectory is the number of names per directory of the trash. Small
// directories are faster to change and can be emptied in steps.
const perDirectory = 4096

func (t *trash) begin(now time.Time) (*batch, error) {
	b := &batch{dir: filepath.Join(t.dir, strconv.FormatInt(now.UnixNano(), 36))}
	if err := os.Mkdir(b.dir, 0o700); err != nil {
		return nil, fmt.Errorf("link files away: %w", err)
	}
	return b, nil
}

// add links the file name of directory from into the batch. It does not follow
// links.
func (b *batch) add(from int, name string) error {
	if b.newest == nil || b.files >= perDirectory {
		if err := b.part(); err != nil {
			return err
		}
	}
	if err := unix.Linkat(from, name, int(b.newest.Fd()), strconv.Itoa(b.files), 0); err != nil {
		return err
	}
	b.files++
	return nil
}

// part starts a new directory.
func (b *batch) part() error {
	dir := filepath.Join(b.dir, strconv.Itoa(b.parts))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	newest, err := openDir(dir)
	if err != nil {
		return err
	}
	b.close()
	b.newest, b.files = newest, 0
	b.parts++
	return nil
}

func (b *batch) close() { _ = b.newest.Close() } // a nil file, too

// freed counts the freed files and bytes.
type freed struct {
	Files int
	Bytes int64
}

// stepNames is the number of names that one step of freeing removes: some ten
// milliseconds on a disk (measured: 150 µs for a file of 16 KiB).
const stepNames = 64

// free removes everything in the trash. A file that cannot be freed does not stop
// the rest. Before each step it calls wait, which may block; an error of wait
// ends the call.
func (t *trash) free(ctx context.Context, wait func(context.Context) error) (freed, error) {
	var f freed
	batches, err := os.ReadDir(t.dir)
	for _, b := range batches {
		path := filepath.Join(t.dir, b.Name())
		if b.IsDir() {
			err = errors.Join(err, t.freeTree(ctx, path, wait, &f, 0))
		} else {
			err = errors.Join(err, freeOne(unix.AT_FDCWD, path, &f))
		}
		if ctx.Err() != nil {
			return f, ctx.Err()
		}
	}
	if err != nil {
		err = fmt.Errorf("free the trash: %w", err)
	}
	return f, err
}

// maxRounds is how often a directory is read again.
const maxRounds = 5

// freeTree removes one directory of the trash. The collector's own have a depth
// of two.
func (t *trash) freeTree(ctx context.Context, dir string, wait func(context.Context) error, f *freed, depth int) error {
	d, err := openDir(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	for round := 0; ; {
		if err := wait(ctx); err != nil {
			return err
		}
		entries, err := d.ReadDir(stepNames)
		for _, e := range entries {
			if e.IsDir() && depth < maxDepth {
				if err := t.freeTree(ctx, filepath.Join(dir, e.Name()), wait, f, depth+1); err != nil {
					return err
				}
				continue
			}
			if err := freeOne(int(d.Fd()), e.Name(), f); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			err := os.Remove(dir)
			if !errors.Is(err, unix.ENOTEMPTY) || round == maxRounds {
				return err
			}
			// A directory that changes while it is read may skip names.
			round++
			_, err = d.Seek(0, io.SeekStart)
			if err == nil {
				continue
			}
		}
		if err != nil {
			return err
		}
	}
}

// freeOne removes one name and counts what that freed.
func freeOne(dir int, name string, f *freed) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil && st.Nlink == 1 {
		f.Bytes += st.Blocks * 512 // stat(2): always in units of 512
	}
	if err := unix.Unlinkat(dir, name, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f.Files++
	return nil
}

// empty reports whether the trash is empty.
func (t *trash) empty() bool {
	entries, err := os.ReadDir(t.dir)
	return err == nil && len(entries) == 0
}
