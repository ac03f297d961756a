package files

import (
	"archive/tar"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/filetree"
	"holdfast/internal/platform/linux/inroot"
)

// Read writes a part of a regular file to what begin returns: count bytes from an offset
// on, and less if the file has become shorter. begin gets the file's description. A link is
// followed.
func (f *Files) Read(ctx context.Context, key holdfast.SessionKey, p string, begin func(holdfast.File) (w io.Writer, from, count int64, err error)) error {
	return f.reading(ctx, key, p, request{Op: "read"}, begin)
}

// reading does a call that writes. The caller's goroutine writes to what begin returns: the
// operation may go on after the call.
func (f *Files) reading(ctx context.Context, key holdfast.SessionKey, p string, q request, begin func(holdfast.File) (w io.Writer, from, count int64, err error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, out := io.Pipe()
	ready, parts, ended := make(chan holdfast.File, 1), make(chan part, 1), make(chan error, 1)
	s := streams{out: out, abort: func(err error) { out.CloseWithError(err) }}
	s.opened = func(ctx context.Context, about holdfast.File) (part, error) {
		ready <- about
		select {
		case p := <-parts:
			return p, nil
		case <-ctx.Done():
			return part{}, context.Cause(ctx)
		}
	}
	go func() {
		_, err := f.call(ctx, key, p, q, s)
		out.CloseWithError(err) // nil is the end
		ended <- err
	}()
	select {
	case err := <-ended:
		return err
	case about := <-ready:
		w, from, count, err := begin(about)
		if err == nil {
			parts <- part{from, count}
			err = f.copyOut(w, r)
		}
		r.CloseWithError(cmp.Or(err, io.ErrClosedPipe))
		if err != nil {
			return err
		}
		return <-ended
	}
}

func read(ctx context.Context, t *tree, p string, _ request, s streams) (reply, error) {
	in, about, err := t.openFile(p)
	if err != nil {
		return reply{}, err
	}
	defer in.Close()
	part, err := s.opened(ctx, about)
	if err == nil {
		_, err = io.CopyBuffer(s.out, io.NewSectionReader(in, part.From, part.Count), make([]byte, chunk))
	}
	return reply{}, err
}

// copyOut copies what was read to the caller.
func (f *Files) copyOut(w io.Writer, r io.Reader) error {
	buf := make([]byte, chunk)
	for {
		n, err := r.Read(buf)
		f.hasRead(n)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// openFile opens a regular file for reading.
func (t *tree) openFile(p string) (*os.File, holdfast.File, error) {
	at, err := t.root.Open(p, unix.O_PATH)
	if err != nil {
		return nil, holdfast.File{}, err
	}
	defer at.Close()
	about, err := t.describe(at, p)
	if err == nil {
		err = regular(at, about)
	}
	if err != nil {
		return nil, about, err
	}
	in, err := inroot.Reopen(at, unix.O_RDONLY)
	return in, about, err
}

// regular returns an error for a file that is not regular, or is the kernel's.
func regular(f *os.File, about holdfast.File) error {
	if about.Type != holdfast.RegularFile {
		return &Error{fmt.Sprintf("it is a %s", about.Type), holdfast.ErrBadFile}
	}
	kernel, err := ofKernel(f)
	if err == nil && kernel {
		err = holdfast.WithHint(&Error{"it is a file of the kernel", holdfast.ErrBadFile}, "`holdfast session exec` can read it in the container")
	}
	return err
}

// ofKernel reports whether a file is in a file system whose files are interfaces of the
// kernel.
func ofKernel(f *os.File) (bool, error) {
	kind, err := inroot.FSType(f)
	switch kind {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC,
		unix.SECURITYFS_MAGIC, unix.BPF_FS_MAGIC, unix.DEVPTS_SUPER_MAGIC, unix.PSTOREFS_MAGIC, unix.EFIVARFS_MAGIC, unix.BINFMTFS_MAGIC,
		unix.SELINUX_MAGIC, unix.SMACK_MAGIC, unix.NSFS_MAGIC, unix.RDTGROUP_SUPER_MAGIC, unix.XENFS_SUPER_MAGIC, unix.USBDEVICE_SUPER_MAGIC,
		configFS, mqueueFS:
		return true, err
	}
	return false, err
}

// Magic numbers that package unix lacks (fs/configfs/mount.c, ipc/mqueue.c).
const (
	configFS = 0x62656570
	mqueueFS = 0x19800202
)

// Pack writes a file, or a directory with its tree, as a tar archive. The names in it begin
// with the last element of the path; with ".", if that is "." or the path is the root. A
// link is not followed. Directories of the kernel's files are left empty.
func (f *Files) Pack(ctx context.Context, key holdfast.SessionKey, p string, w io.Writer) error {
	name := path.Base(p)
	if p == "/" || strings.HasSuffix(p, "/.") {
		name = "."
	}
	return f.reading(ctx, key, p, request{Op: "pack", Name: []byte(name)}, func(holdfast.File) (io.Writer, int64, int64, error) { return w, 0, 0, nil })
}

func pack(ctx context.Context, t *tree, p string, q request, s streams) (reply, error) {
	name := string(q.Name)
	flags := unix.O_PATH
	if name != "." {
		flags |= unix.O_NOFOLLOW
	}
	file, err := t.root.Open(p, flags)
	if err != nil {
		return reply{}, err
	}
	defer file.Close()
	about, err := t.describe(file, p)
	if err == nil && about.Type == holdfast.RegularFile {
		err = regular(file, about)
	}
	if err == nil {
		_, err = s.opened(ctx, about)
	}
	if err != nil {
		return reply{}, err
	}
	a := tar.NewWriter(s.out)
	_, err = filetree.Pack(ctx, a, file, name, filetree.Packing{
		Owner: func(uid, gid int) (int, int) { return t.root.UIDs.Inside(uid), t.root.GIDs.Inside(gid) },
		Enter: func(dir *os.File) (bool, error) {
			kernel, err := ofKernel(dir)
			return !kernel, err
		},
	})
	return reply{}, cmp.Or(err, a.Close())
}
