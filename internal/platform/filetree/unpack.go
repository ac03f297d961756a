package filetree

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Unpacking are the options of Unpack.
type Unpacking struct {
	// Owner returns the ids of a new file for those of the archive, below 0 for those of
	// the process; nil is always those of the process.
	Owner func(uid, gid int) (int, int)
	// Rename returns the name of an entry below the tree; nil keeps the archive's.
	Rename func(name string) string
	Writer func(*os.File) (io.Writer, error) // as in Attributes
	Seen   func(bytes int)                   // as in Packing
}

// Unpack makes the files of an archive below a directory. Files that are in the way are
// replaced, directories keep their attributes. No entry leaves the directory: a link that
// does is an error. Devices are skipped. After an error the files before it are there.
// ErrArchive, ErrType.
func Unpack(ctx context.Context, root *os.Root, r *tar.Reader, o Unpacking) (Total, error) {
	u := &unpacker{ctx: ctx, root: root, r: r, o: o}
	defer u.leave()
	for {
		if err := context.Cause(ctx); err != nil {
			return u.total, err
		}
		h, err := r.Next()
		if err == io.EOF {
			return u.total, u.setTimes()
		}
		if err != nil {
			return u.total, archiveError(err)
		}
		if err := u.add(h); err != nil {
			return u.total, fmt.Errorf("unpack %s: %w", bounded(h.Name), err)
		}
	}
}

// archiveError tells a bad archive from an error of its reader.
func archiveError(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: %w", ErrArchive, err)
	}
	return err
}

type unpacker struct {
	ctx   context.Context // of one call
	root  *os.Root
	r     *tar.Reader
	o     Unpacking
	total Total

	at    string   // path of dir
	dir   *os.Root // the last entry's directory
	times []dirTime
}

type dirTime struct {
	path string
	time time.Time
}

// add makes one entry's file.
func (u *unpacker) add(h *tar.Header) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name, err := local(h.Name)
	if err == nil && u.o.Rename != nil {
		name, err = local(u.o.Rename(name))
	}
	if err != nil {
		return err
	}
	if name == "." {
		if h.Typeflag != tar.TypeDir {
			return fmt.Errorf("%w: an entry has no name", ErrArchive)
		}
		return nil
	}
	parent, base := path.Split(name)
	if err := u.enter(path.Clean(parent)); err != nil {
		return err
	}
	a := Attributes{Mode: uint32(h.Mode) & 0o7777, UID: -1, GID: -1, Modified: h.ModTime, Writer: u.o.Writer, Seen: u.o.Seen}
	if u.o.Owner != nil {
		a.UID, a.GID = u.o.Owner(h.Uid, h.Gid)
	}
	return u.make(h, name, base, a)
}

func (u *unpacker) make(h *tar.Header, name, base string, a Attributes) error {
	u.total.Entries++
	switch h.Typeflag {
	case tar.TypeDir:
		return u.makeDir(name, base, a)
	case tar.TypeReg:
		n, err := Replace(u.ctx, u.dir, base, a, u.r)
		u.total.Bytes += n
		return err
	case tar.TypeSymlink:
		err := u.clear(base, func() error { return u.dir.Symlink(h.Linkname, base) })
		if err == nil && (a.UID >= 0 || a.GID >= 0) {
			err = u.dir.Lchown(base, a.UID, a.GID)
		}
		return err
	case tar.TypeLink:
		return u.link(h, name)
	case tar.TypeFifo:
		return u.clear(base, func() error { return u.makePipe(base, a) })
	case tar.TypeChar, tar.TypeBlock:
		u.total.Entries--
		u.total.Skipped++
		return nil
	}
	return fmt.Errorf("%w: an entry has the type %q", ErrArchive, h.Typeflag)
}

// local returns a name of an archive as a path below its root.
func local(name string) (string, error) {
	for _, part := range strings.Split(name, "/") {
		if part == ".." {
			return "", fmt.Errorf("%w: the name leaves the directory", ErrArchive)
		}
	}
	if len(name) >= unix.PathMax || strings.ContainsRune(name, 0) {
		return "", fmt.Errorf("%w: a name is too long", ErrArchive)
	}
	return path.Clean("./" + strings.TrimLeft(name, "/")), nil
}

// enter opens the directory of the next entry, and makes those that are missing.
func (u *unpacker) enter(at string) error {
	if u.dir != nil && u.at == at {
		return nil
	}
	u.leave()
	dir, err := u.root.OpenRoot(at)
	if errors.Is(err, fs.ErrNotExist) {
		if err = u.root.MkdirAll(at, 0o755); err == nil {
			dir, err = u.root.OpenRoot(at)
		}
	}
	if err == nil {
		u.at, u.dir = at, dir
	}
	return err
}

func (u *unpacker) leave() {
	if u.dir != nil {
		u.dir.Close()
		u.dir = nil
	}
}

// makeDir makes a directory. One that exists, or a link to it, stays as it is.
func (u *unpacker) makeDir(name, base string, a Attributes) error {
	err := u.dir.Mkdir(base, 0o700)
	if errors.Is(err, fs.ErrExist) {
		fi, err := u.root.Stat(name)
		if err == nil && !fi.IsDir() {
			err = ErrType
		}
		return err
	}
	if err != nil {
		return err
	}
	d, err := u.dir.OpenFile(base, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	if len(u.times) < maxTimes {
		u.times = append(u.times, dirTime{name, a.Modified})
	}
	return a.set(d)
}

// setTimes sets the times of directories, which the files in them have changed.
func (u *unpacker) setTimes() error {
	for i := len(u.times) - 1; i >= 0; i-- {
		if t := u.times[i]; !t.time.IsZero() {
			_ = u.root.Chtimes(t.path, t.time, t.time) // another program may have removed it
		}
	}
	return nil
}

// clear calls create again after it has removed a file that is in the way.
func (u *unpacker) clear(base string, create func() error) error {
	err := create()
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	if fi, err := u.dir.Lstat(base); err == nil && fi.IsDir() {
		return fmt.Errorf("%w: it is a directory", ErrType)
	}
	if err := u.dir.Remove(base); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return create()
}

// link makes a hard link to an entry that was unpacked before.
func (u *unpacker) link(h *tar.Header, name string) error {
	old, err := local(h.Linkname)
	if err == nil && u.o.Rename != nil {
		old, err = local(u.o.Rename(old))
	}
	if err != nil {
		return err
	}
	if fi, err := u.root.Lstat(name); err == nil {
		if fi.IsDir() {
			return fmt.Errorf("%w: it is a directory", ErrType)
		}
		if err := u.root.Remove(name); err != nil {
			return err
		}
	}
	return u.root.Link(old, name)
}

func (u *unpacker) makePipe(base string, a Attributes) error {
	d, err := u.dir.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	if err := unix.Mkfifoat(int(d.Fd()), base, a.Mode&0o777); err != nil {
		return err
	}
	if a.UID < 0 && a.GID < 0 {
		return nil
	}
	return unix.Fchownat(int(d.Fd()), base, a.UID, a.GID, unix.AT_SYMLINK_NOFOLLOW)
}
