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
	type opened struct {
		file holdfast.File
		data *io.PipeReader
		part chan [2]int64
	}
	ready, ended := make(chan opened, 1), make(chan error, 1)
	go func() {
		ended <- f.call(ctx, key, "read", p, func(ctx context.Context, t *tree, p string) error {
			in, about, err := t.openFile(p)
			if err != nil {
				return err
			}
			defer in.Close()
			r, w := io.Pipe()
			defer context.AfterFunc(ctx, func() { w.CloseWithError(context.Cause(ctx)) })()
			o := opened{about, r, make(chan [2]int64, 1)}
			ready <- o
			select {
			case part := <-o.part:
				_, err = io.CopyBuffer(w, io.NewSectionReader(in, part[0], part[1]), make([]byte, chunk))
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
			w.CloseWithError(err)
			return err
		})
	}()
	select {
	case err := <-ended:
		return err
	case o := <-ready:
		w, from, count, err := begin(o.file)
		if err == nil {
			o.part <- [2]int64{from, count}
			err = f.copyOut(w, o.data)
		}
		o.data.CloseWithError(cmp.Or(err, io.ErrClosedPipe))
		if err != nil {
			return err
		}
		return <-ended
	}
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
	r, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := f.call(ctx, key, "read", p, func(ctx context.Context, t *tree, p string) error {
			defer context.AfterFunc(ctx, func() { out.CloseWithError(context.Cause(ctx)) })()
			return t.pack(ctx, p, name, out)
		})
		out.CloseWithError(err) // nil is the end
		ended <- err
	}()
	err := f.copyOut(w, r)
	r.CloseWithError(cmp.Or(err, io.ErrClosedPipe))
	return cmp.Or(<-ended, err)
}

func (t *tree) pack(ctx context.Context, p, name string, w io.Writer) error {
	flags := unix.O_PATH
	if name != "." {
		flags |= unix.O_NOFOLLOW
	}
	file, err := t.root.Open(p, flags)
	if err != nil {
		return err
	}
	defer file.Close()
	about, err := t.describe(file, p)
	if err == nil && about.Type == holdfast.RegularFile {
		err = regular(file, about)
	}
	if err != nil {
		return err
	}
	a := tar.NewWriter(w)
	_, err = filetree.Pack(ctx, a, file, name, filetree.Packing{
		Owner: func(uid, gid int) (int, int) { return t.root.UIDs.Inside(uid), t.root.GIDs.Inside(gid) },
		Enter: func(dir *os.File) (bool, error) {
			kernel, err := ofKernel(dir)
			return !kernel, err
		},
	})
	return cmp.Or(err, a.Close())
}
