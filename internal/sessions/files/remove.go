package files

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"holdfast"
)

// Remove removes a file, or a directory: an empty one, or with recursive any. A link is
// removed, not followed. Mount points stay, and are an error.
func (f *Files) Remove(ctx context.Context, key holdfast.SessionKey, p string, recursive bool) error {
	_, err := f.call(ctx, key, p, request{Op: "remove", Recursive: recursive}, streams{})
	return err
}

func remove(ctx context.Context, t *tree, p string, q request, _ streams) (reply, error) {
	dir, base, err := t.parent(p)
	if err != nil {
		return reply{}, err
	}
	defer dir.Close()
	if q.Recursive {
		return reply{}, (&remover{ctx: ctx}).remove(dir, base, 0)
	}
	err = unix.Unlinkat(int(dir.Fd()), base, 0)
	if err == unix.EISDIR {
		err = unix.Unlinkat(int(dir.Fd()), base, unix.AT_REMOVEDIR)
	}
	return reply{}, err
}

// remover removes trees of any depth with a bounded number of open directories: a
// directory at the maximal depth is moved up to the first one, and removed from there.
// ".." is never opened: a directory may have been moved out of the tree.
type remover struct {
	ctx context.Context // of one call
	top *os.File        // the first directory
}

// removeDepth is the number of directories that are open at once.
const removeDepth = 64

// remove removes an entry of a directory.
func (r *remover) remove(dir *os.File, name string, depth int) error {
	if err := context.Cause(r.ctx); err != nil {
		return err
	}
	err := unix.Unlinkat(int(dir.Fd()), name, 0)
	if err == unix.ENOENT && depth == 0 {
		return err
	}
	if err != unix.EISDIR {
		return failed(name, err)
	}
	if err := unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR); err != unix.ENOTEMPTY {
		return failed(name, err)
	}
	if depth == removeDepth {
		return failed(name, unix.Renameat2(int(dir.Fd()), name, int(r.top.Fd()), ".holdfast-"+rand.Text(), unix.RENAME_NOREPLACE))
	}
	child, err := openAt(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer child.Close()
	if depth == 0 {
		r.top = child
	}
	if err := r.empty(child, depth); err != nil {
		return err
	}
	err = unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR)
	if err == unix.ENOTEMPTY { // the container adds to it
		return holdfast.WithHint(&Error{fmt.Sprintf("%s: the container adds files while they are removed", bounded(name)), holdfast.ErrBusy}, "try again")
	}
	return failed(name, err)
}

// empty removes the content of a directory. Names that are added meanwhile are removed, too,
// for a bounded number of times.
func (r *remover) empty(dir *os.File, depth int) error {
	for pass := 0; pass < emptyPasses; {
		names, err := dir.Readdirnames(1024)
		for _, n := range names {
			if err := r.remove(dir, n, depth+1); err != nil {
				return err
			}
		}
		if len(names) > 0 {
			continue
		}
		if err != nil && err != io.EOF && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
		if names, _ = dir.Readdirnames(1); len(names) == 0 {
			return nil
		}
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
		if depth > 0 {
			pass++
		}
	}
	return nil
}

// emptyPasses is how often a directory is read again, except the first one: directories
// are moved there, and the caller's context bounds the time.
const emptyPasses = 8

// failed returns the error of a name, nil if it is gone.
func failed(name string, err error) error {
	if err == nil || err == unix.ENOENT {
		return nil
	}
	return &os.PathError{Op: "remove", Path: name, Err: err}
}
