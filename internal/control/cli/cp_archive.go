package cli

import (
	"archive/tar"
	"cmp"
	"context"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/control/api/client"
	"holdfast/internal/platform/filetree"
)

// receive unpacks the archive of a session's file below a local directory. A link of the
// container leads nowhere else.
func receive(ctx context.Context, c *client.Client, key holdfast.SessionKey, remote string, root *os.Root, o filetree.Unpacking) (holdfast.Unpacked, error) {
	r, w := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		err := c.PackFiles(ctx, key, remote, w)
		w.CloseWithError(err)
		sent <- err
	}()
	n, err := filetree.Unpack(ctx, root, tar.NewReader(r), o)
	if err == nil {
		_, err = io.Copy(io.Discard, r) // the end of the archive, and a late error
	}
	r.CloseWithError(cmp.Or(err, io.ErrClosedPipe))
	if late := <-sent; err == nil {
		err = late
	}
	return holdfast.Unpacked{Entries: n.Entries, Bytes: n.Bytes, Skipped: n.Skipped}, err
}

// pack writes a local file with its tree as an archive.
func pack(ctx context.Context, w io.Writer, f *os.File, name string, o filetree.Packing) error {
	a := tar.NewWriter(w)
	_, err := filetree.Pack(ctx, a, f, name, o)
	return cmp.Or(err, a.Close())
}

// openPath opens a file without reading it. A link is opened itself if fi describes a link.
func openPath(name string, fi fs.FileInfo) (*os.File, error) {
	flags := unix.O_PATH | unix.O_CLOEXEC
	if fi.Mode()&fs.ModeSymlink != 0 {
		flags |= unix.O_NOFOLLOW
	}
	fd, err := unix.Open(name, flags, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}
