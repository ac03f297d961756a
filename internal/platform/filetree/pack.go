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
	"time"

	"golang.org/x/sys/unix"
)

// Packing are the options of Pack.
type Packing struct {
	// Owner returns the ids for the archive; nil keeps those of the files.
	Owner func(uid, gid int) (int, int)
	// Enter reports whether the content of a directory belongs to the archive; nil is
	// always.
	Enter func(dir *os.File) (bool, error)
	// Seen is called with the number of bytes of each piece; it may be nil.
	Seen func(bytes int)
}

// Pack writes the file that f refers to, an O_PATH descriptor, to an archive: with its
// tree, if it is a directory. name is its name in the archive, "." for a directory that is
// the archive's root. Files that disappear meanwhile are left out. Sockets are skipped.
// ErrTooDeep, ErrChanged.
func Pack(ctx context.Context, w *tar.Writer, f *os.File, name string, o Packing) (Total, error) {
	p := &packer{ctx: ctx, w: w, o: o, links: map[inode]string{}}
	err := p.add(f, name, 0)
	return p.total, err
}

type packer struct {
	ctx   context.Context // of one call
	w     *tar.Writer
	o     Packing
	links map[inode]string // first names of files with several ones
	total Total
}

type inode struct{ dev, ino uint64 }

// add adds the file f.
func (p *packer) add(f *os.File, name string, depth int) error {
	if err := context.Cause(p.ctx); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	h := p.header(st, name)
	var err error
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return p.addDir(f, h, depth)
	case unix.S_IFREG:
		return p.addFile(f, h, st)
	case unix.S_IFLNK:
		h.Typeflag = tar.TypeSymlink
		h.Linkname, err = readlink(f)
	case unix.S_IFIFO:
		h.Typeflag = tar.TypeFifo
	case unix.S_IFCHR:
		h.Typeflag = tar.TypeChar
	case unix.S_IFBLK:
		h.Typeflag = tar.TypeBlock
	default:
		p.total.Skipped++
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	if h.Typeflag == tar.TypeChar || h.Typeflag == tar.TypeBlock {
		h.Devmajor, h.Devminor = int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))
	}
	return p.write(h)
}

func (p *packer) header(st unix.Stat_t, name string) *tar.Header {
	h := &tar.Header{
		Name: name, Mode: int64(st.Mode & 0o7777), Uid: int(st.Uid), Gid: int(st.Gid),
		ModTime: time.Unix(st.Mtim.Unix()), Format: tar.FormatPAX,
	}
	if p.o.Owner != nil {
		h.Uid, h.Gid = p.o.Owner(h.Uid, h.Gid)
	}
	return h
}

func (p *packer) write(h *tar.Header) error {
	p.total.Entries++
	return p.w.WriteHeader(h)
}

// addFile adds a regular file, or a hard link to one that has been added.
func (p *packer) addFile(f *os.File, h *tar.Header, st unix.Stat_t) error {
	h.Typeflag, h.Size = tar.TypeReg, st.Size
	if id := (inode{st.Dev, st.Ino}); st.Nlink > 1 {
		if first, ok := p.links[id]; ok {
			h.Typeflag, h.Size, h.Linkname = tar.TypeLink, 0, first
			return p.write(h)
		}
		if len(p.links) < maxLinks {
			p.links[id] = h.Name
		}
	}
	in, err := reopen(f, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := p.write(h); err != nil {
		return err
	}
	n, err := copyBytes(p.ctx, p.w, io.LimitReader(in, h.Size), p.o.Seen)
	p.total.Bytes += n
	if err == nil && n < h.Size {
		err = ErrChanged
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", h.Name, err)
	}
	return nil
}

// addDir adds a directory with its content.
func (p *packer) addDir(f *os.File, h *tar.Header, depth int) error {
	name := h.Name
	h.Typeflag, h.Name = tar.TypeDir, name+"/"
	if err := p.write(h); err != nil {
		return err
	}
	if p.o.Enter != nil {
		if enter, err := p.o.Enter(f); err != nil || !enter {
			return err
		}
	}
	if depth == maxDepth {
		return fmt.Errorf("read %s: %w", bounded(name), ErrTooDeep)
	}
	dir, err := reopen(f, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(batch)
		for _, n := range names {
			if err := p.addEntry(dir, n, path.Join(name, n), depth); err != nil {
				return err
			}
		}
		if err == io.EOF || errors.Is(err, fs.ErrNotExist) { // the directory was removed
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", bounded(name), err)
		}
	}
}

func (p *packer) addEntry(dir *os.File, base, name string, depth int) error {
	fd, err := unix.Openat(int(dir.Fd()), base, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", bounded(name), err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	return p.add(f, name, depth+1)
}

// reopen opens the file that f refers to, and no other.
func reopen(f *os.File, flags int) (*os.File, error) {
	fd, err := unix.Open(self(f), flags|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", bounded(f.Name()), err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

func self(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// readlink returns the target of the link that f refers to.
func readlink(f *os.File) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(f.Fd()), "", buf)
	return string(buf[:max(0, n)]), err
}

// bounded shortens a path for a message.
func bounded(name string) string {
	const most = 200
	if len(name) > most {
		return "…" + name[len(name)-most:]
	}
	return name
}
