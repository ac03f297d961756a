package apitest

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/platform/filetree"
)

// files has the files of all sessions, in a directory of this host. Nothing in it is
// hostile. A path that has "full" as its last element is on a full disk.
type files struct{ b *Backend }

// open returns the directory and a path in it. The caller closes the directory.
func (f files) open(ctx context.Context, key holdfast.SessionKey, p string) (*os.Root, string, error) {
	if _, err := f.b.Session(ctx, key); err != nil {
		return nil, "", err
	}
	if !strings.HasPrefix(p, "/") {
		return nil, "", fmt.Errorf("the path %q is not absolute: %w", p, holdfast.ErrBadFile)
	}
	if path.Base(p) == "full" {
		return nil, "", fmt.Errorf("write %s: %w", p, holdfast.ErrNoSpace)
	}
	if f.b.Files == "" {
		return nil, "", fmt.Errorf("stat %s: there is no such file: %w", p, holdfast.ErrNotFound)
	}
	root, err := os.OpenRoot(f.b.Files)
	return root, path.Join(".", p), err
}

// failed returns an error as an agent does.
func failed(op, p string, err error) error {
	for from, to := range map[error]error{filetree.ErrArchive: holdfast.ErrBadFile, fs.ErrNotExist: holdfast.ErrNotFound, fs.ErrExist: holdfast.ErrExists, unix.ENOTDIR: holdfast.ErrBadFile, unix.EISDIR: holdfast.ErrBadFile, filetree.ErrType: holdfast.ErrExists} {
		if errors.Is(err, from) {
			return fmt.Errorf("%s %s: %w", op, p, to)
		}
	}
	return err
}

func (f files) describe(root *os.Root, name string, follow bool) (holdfast.File, error) {
	look := root.Lstat
	if follow {
		look = root.Stat
	}
	fi, err := look(name)
	if err != nil {
		return holdfast.File{}, failed("stat", "/"+name, err)
	}
	out := holdfast.File{Path: path.Join("/", name), Name: path.Base(path.Join("/", name)), Type: holdfast.RegularFile, Size: fi.Size(), Mode: fmt.Sprintf("%04o", fi.Mode().Perm()), Modified: Began}
	switch {
	case fi.IsDir():
		out.Type, out.Size = holdfast.Directory, 0
	case fi.Mode()&fs.ModeSymlink != 0:
		out.Type = holdfast.SymbolicLink
		out.Target, err = root.Readlink(name)
	default:
		var f *os.File
		if f, err = root.Open(name); err == nil {
			defer f.Close()
			out.Attributes = filetree.Extended(f, holdfast.MaxAttributes)
		}
	}
	return out, err
}

// Stat implements api.FileService.
func (f files) Stat(ctx context.Context, key holdfast.SessionKey, p string, follow bool) (holdfast.File, error) {
	root, name, err := f.open(ctx, key, p)
	if err != nil {
		return holdfast.File{}, err
	}
	defer root.Close()
	return f.describe(root, name, follow)
}

// List implements api.FileService.
func (f files) List(ctx context.Context, key holdfast.SessionKey, p string, limit int) (list []holdfast.File, more bool, err error) {
	root, name, err := f.open(ctx, key, p)
	if err != nil {
		return nil, false, err
	}
	defer root.Close()
	entries, err := fs.ReadDir(root.FS(), name)
	if err != nil {
		return nil, false, failed("list", p, err)
	}
	for i, e := range entries {
		if limit > 0 && i == limit {
			return list, true, nil
		}
		one, err := f.describe(root, path.Join(name, e.Name()), false)
		if err != nil {
			return nil, false, err
		}
		list = append(list, one)
	}
	return list, false, nil
}

// Read implements api.FileService.
func (f files) Read(ctx context.Context, key holdfast.SessionKey, p string, begin func(holdfast.File) (io.Writer, int64, int64, error)) error {
	root, name, err := f.open(ctx, key, p)
	if err != nil {
		return err
	}
	defer root.Close()
	about, err := f.describe(root, name, true)
	if err != nil {
		return err
	}
	in, err := root.Open(name)
	if err != nil {
		return failed("read", p, err)
	}
	defer in.Close()
	w, from, n, err := begin(about)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, io.NewSectionReader(in, from, n))
	return err
}

// Write implements api.FileService.
func (f files) Write(ctx context.Context, key holdfast.SessionKey, p string, o holdfast.WriteFile, r io.Reader) (holdfast.File, error) {
	root, name, err := f.open(ctx, key, p)
	if err != nil {
		return holdfast.File{}, err
	}
	defer root.Close()
	a := filetree.Attributes{Mode: 0o644, UID: -1, GID: -1, Extended: o.Attributes}
	if o.Mode != nil {
		a.Mode = *o.Mode
	}
	if _, err := filetree.Replace(ctx, root, name, a, r); err != nil {
		return holdfast.File{}, failed("write", p, err)
	}
	return f.describe(root, name, false)
}

// MakeDir implements api.FileService.
func (f files) MakeDir(ctx context.Context, key holdfast.SessionKey, p string, parents bool, _ holdfast.WriteFile) (holdfast.File, error) {
	root, name, err := f.open(ctx, key, p)
	if err != nil {
		return holdfast.File{}, err
	}
	defer root.Close()
	if parents {
		err = root.MkdirAll(name, 0o755)
	} else {
		err = root.Mkdir(name, 0o755)
	}
	if err != nil {
		return holdfast.File{}, failed("make directory", p, err)
	}
	return f.describe(root, name, false)
}

// Move implements api.FileService.
func (f files) Move(ctx context.Context, key holdfast.SessionKey, from, to string, replace bool) error {
	root, name, err := f.open(ctx, key, from)
	if err != nil {
		return err
	}
	defer root.Close()
	if _, err := root.Lstat(path.Join(".", to)); err == nil && !replace {
		return fmt.Errorf("move %s: it exists already: %w", from, holdfast.ErrExists)
	}
	return failed("move", from, root.Rename(name, path.Join(".", to)))
}

// Remove implements api.FileService.
func (f files) Remove(ctx context.Context, key holdfast.SessionKey, p string, recursive bool) error {
	root, name, err := f.open(ctx, key, p)
	if err != nil {
		return err
	}
	defer root.Close()
	if recursive {
		return failed("remove", p, root.RemoveAll(name))
	}
	return failed("remove", p, root.Remove(name))
}

// Pack implements api.FileService.
func (f files) Pack(ctx context.Context, key holdfast.SessionKey, p string, w io.Writer) error {
	root, name, err := f.open(ctx, key, p)
	if err != nil {
		return err
	}
	defer root.Close()
	in, err := root.Open(name)
	if err != nil {
		return failed("read", p, err)
	}
	defer in.Close()
	first := path.Base(p)
	if p == "/" || strings.HasSuffix(p, "/.") {
		first = "."
	}
	a := tar.NewWriter(w)
	_, err = filetree.Pack(ctx, a, in, first, filetree.Packing{})
	return cmp.Or(err, a.Close())
}

// Unpack implements api.FileService.
func (f files) Unpack(ctx context.Context, key holdfast.SessionKey, p string, _ holdfast.UnpackFiles, r io.Reader) (holdfast.Unpacked, error) {
	root, name, err := f.open(ctx, key, p)
	if err != nil {
		return holdfast.Unpacked{}, err
	}
	defer root.Close()
	dir, err := root.OpenRoot(name)
	if err != nil {
		return holdfast.Unpacked{}, failed("write", p, err)
	}
	defer dir.Close()
	n, err := filetree.Unpack(ctx, dir, tar.NewReader(r), filetree.Unpacking{})
	if err != nil {
		return holdfast.Unpacked{}, failed("write", p, err)
	}
	_, err = io.Copy(io.Discard, r)
	return holdfast.Unpacked{Entries: n.Entries, Bytes: n.Bytes, Skipped: n.Skipped}, err
}

// Watch implements api.FileService. It reports one change, and that the file is gone.
func (f files) Watch(ctx context.Context, key holdfast.SessionKey, p string, _ bool, each func(holdfast.FileEvent) error) error {
	root, _, err := f.open(ctx, key, p)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, e := range []holdfast.FileEvent{{Kind: holdfast.WatchReady, Path: p}, {Kind: holdfast.FileCreated, Path: path.Join(p, "new"), Directory: true}, {Kind: holdfast.WatchedIsGone, Path: p}} {
		e.Time = Began
		if err := each(e); err != nil {
			return err
		}
	}
	return nil
}

var _ api.FileService = files{}
