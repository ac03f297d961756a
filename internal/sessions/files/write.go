package files

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/filetree"
	"holdfast/internal/platform/linux/inroot"
)

// Write writes what r has to a file, and describes the file. A new file and the
// replacement of a regular one appear when they are complete. A link is followed, and the
// file that it leads to is overwritten in place, as is a mount point. The directory has to
// exist. Setuid and setgid bits are dropped. holdfast.ErrBadFile if the file system keeps no
// extended attributes and o has some.
func (f *Files) Write(ctx context.Context, key holdfast.SessionKey, p string, o holdfast.WriteFile, r io.Reader) (holdfast.File, error) {
	return described(f.call(ctx, key, p, request{Op: "write", Write: o}, streams{in: r}))
}

func write(ctx context.Context, t *tree, p string, q request, s streams) (reply, error) {
	if err := t.write(ctx, p, q.Write, s.in); err != nil {
		return reply{}, err
	}
	file, err := t.root.Open(p, unix.O_PATH)
	if err != nil {
		return reply{}, err
	}
	defer file.Close()
	return t.reply(file, p)
}

// pipe returns a reader of r whose reads end with ctx.
func pipe(ctx context.Context, r io.Reader) (io.Reader, func()) {
	in, out := io.Pipe()
	go func() {
		_, err := io.CopyBuffer(out, struct{ io.Reader }{r}, make([]byte, chunk))
		out.CloseWithError(err)
	}()
	stop := context.AfterFunc(ctx, func() { in.CloseWithError(context.Cause(ctx)) })
	return in, func() {
		stop()
		in.Close()
	}
}

func (t *tree) write(ctx context.Context, p string, o holdfast.WriteFile, r io.Reader) error {
	dir, base, err := t.parent(p)
	if err != nil {
		return err
	}
	defer dir.Close()
	a := filetree.Attributes{Mode: 0o644, Writer: t.writer, Seen: t.seen, Extended: o.Attributes}
	a.UID, a.GID, err = t.owner(0, 0)
	if err != nil {
		return err
	}
	old, err := openAt(dir, base, unix.O_PATH|unix.O_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT):
	case err != nil:
		return err
	default:
		defer old.Close()
		var st unix.Stat_t
		if err := unix.Fstat(int(old.Fd()), &st); err != nil {
			return err
		}
		switch typeOf(st.Mode) {
		case holdfast.SymbolicLink:
			return t.overwrite(ctx, p, a, r)
		case holdfast.RegularFile:
			a.Mode, a.UID, a.GID = st.Mode&0o7777, int(st.Uid), int(st.Gid)
		default:
			return &Error{fmt.Sprintf("it is a %s", typeOf(st.Mode)), holdfast.ErrBadFile}
		}
	}
	if err := t.choose(&a, o); err != nil {
		return err
	}
	root, err := os.OpenRoot(inroot.Self(dir))
	if err != nil {
		return err
	}
	defer root.Close()
	_, err = filetree.Replace(ctx, root, base, a, r)
	return err
}

// choose sets what the caller wants.
func (t *tree) choose(a *filetree.Attributes, o holdfast.WriteFile) error {
	if o.Mode != nil {
		a.Mode = *o.Mode
	}
	for _, x := range []struct {
		want *int
		of   inroot.Mapping
		set  *int
		name string
	}{{o.UID, t.root.UIDs, &a.UID, "user"}, {o.GID, t.root.GIDs, &a.GID, "group"}} {
		if x.want == nil {
			continue
		}
		id, ok := x.of.Outside(*x.want)
		if !ok {
			return &Error{"the container has no " + x.name + " " + strconv.Itoa(*x.want), holdfast.ErrBadFile}
		}
		*x.set = id
	}
	return nil
}

// overwrite writes to the file that a link leads to.
func (t *tree) overwrite(ctx context.Context, p string, a filetree.Attributes, r io.Reader) error {
	file, err := t.root.Open(p, unix.O_PATH)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = filetree.Overwrite(ctx, file, a, r)
	return err
}

// parent opens the directory of a path, and returns the path's last element.
func (t *tree) parent(p string) (*os.File, string, error) {
	if p == "/" {
		return nil, "", &Error{"it is the root of the container", holdfast.ErrBadFile}
	}
	dir, err := t.root.Open(path.Dir(p), unix.O_PATH|unix.O_DIRECTORY)
	return dir, path.Base(p), err
}

// writer returns where the content of an opened file goes.
func (t *tree) writer(f *os.File) (io.Writer, error) {
	kernel, err := ofKernel(f)
	if err != nil {
		return nil, err
	}
	if kernel {
		return nil, &Error{"it is a file of the kernel", holdfast.ErrBadFile}
	}
	if t.root.IsOwn() { // gVisor charges the container
		return f, nil
	}
	if kind, err := inroot.FSType(f); err != nil || kind != unix.TMPFS_MAGIC && kind != unix.RAMFS_MAGIC {
		return f, err
	}
	return &memoryWriter{f, t}, nil
}

// memoryWriter writes to a file in memory. The kernel charges the agent for it and not
// the container, so it is bounded.
type memoryWriter struct {
	f *os.File
	t *tree
}

func (w *memoryWriter) Write(p []byte) (int, error) {
	if w.t.inMemory.Add(int64(len(p))) > maxMemoryFile {
		return 0, holdfast.WithHint(&Error{fmt.Sprintf("one call writes at most %d MiB to a file system in memory", maxMemoryFile>>20), holdfast.ErrNoSpace},
			"`holdfast session exec -i` can write more from inside the container")
	}
	return w.f.Write(p)
}

// Unpack makes the files of a tar archive below a directory, which has to exist. No link
// in it is followed out of it. After an error the files before it are there.
func (f *Files) Unpack(ctx context.Context, key holdfast.SessionKey, p string, o holdfast.UnpackFiles, r io.Reader) (total holdfast.Unpacked, err error) {
	out, err := f.call(ctx, key, p, request{Op: "unpack", Unpack: o}, streams{in: r})
	if out.Total != nil {
		total = *out.Total
	}
	return total, err
}

func unpack(ctx context.Context, t *tree, p string, q request, s streams) (reply, error) {
	dir, err := t.root.Open(p, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return reply{}, err
	}
	defer dir.Close()
	root, err := os.OpenRoot(inroot.Self(dir))
	if err != nil {
		return reply{}, err
	}
	defer root.Close()
	n, err := t.unpack(ctx, root, q.Unpack, s.in)
	return reply{Total: &holdfast.Unpacked{Entries: n.Entries, Bytes: n.Bytes, Skipped: n.Skipped}}, err
}

func (t *tree) unpack(ctx context.Context, root *os.Root, o holdfast.UnpackFiles, r io.Reader) (filetree.Total, error) {
	uid, gid, err := t.owner(0, 0)
	if err != nil {
		return filetree.Total{}, err
	}
	n, err := filetree.Unpack(ctx, root, tar.NewReader(r), filetree.Unpacking{
		Owner: func(u, g int) (int, int) {
			if hu, hg, err := t.owner(u, g); o.Owners && err == nil {
				return hu, hg
			}
			return uid, gid
		},
		Writer: t.writer, Seen: t.seen,
	})
	if err != nil {
		return n, err
	}
	// What follows the end of the archive is padding: the sender must not be cut off.
	_, err = io.CopyBuffer(io.Discard, io.LimitReader(struct{ io.Reader }{r}, maxPadding), make([]byte, chunk))
	return n, cmp.Or(err, context.Cause(ctx))
}

// maxPadding bounds the bytes behind an archive. GNU tar fills up to a record, which
// may be made as large as 1 MiB.
const maxPadding = 4 << 20
