package filetree

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Attributes are those of a file to be written.
type Attributes struct {
	Mode     uint32 // 0 to 01777; setuid and setgid bits are dropped
	UID, GID int    // below 0: those of the process
	Modified time.Time
	// Writer returns where the content of the new file goes; nil is the file. It may
	// refuse.
	Writer func(*os.File) (io.Writer, error)
	Seen   func(bytes int) // as in Packing
	// Extended are the extended attributes of the namespace user, without that prefix.
	Extended map[string]string
}

// Replace makes the file base of a directory, or replaces it, with what r has. The name
// has the old file until the new one is complete. A file that is a mount point cannot be
// replaced and is overwritten. ErrType if it is a directory.
func Replace(ctx context.Context, dir *os.Root, base string, a Attributes, r io.Reader) (int64, error) {
	temp := ".holdfast-" + rand.Text()
	f, err := dir.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	n, err := fill(ctx, f, a, r)
	if err == nil {
		err = dir.Rename(temp, base)
	}
	over := errors.Is(err, unix.EBUSY)
	if over {
		err = overwrite(ctx, f, dir, base, a)
	}
	err = cmp.Or(err, f.Close()) // some file systems report a full disk only now
	if err != nil || over {
		_ = dir.Remove(temp)
	}
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOTEMPTY) {
		err = fmt.Errorf("%w: it is a directory", ErrType)
	}
	return n, err
}

// fill writes a new file with its attributes.
func fill(ctx context.Context, f *os.File, a Attributes, r io.Reader) (int64, error) {
	w, err := a.writer(f)
	if err != nil {
		return 0, err
	}
	n, err := copyBytes(ctx, w, r, a.Seen)
	if err == nil {
		err = setExtended(f, a.Extended)
	}
	if err == nil {
		err = a.set(f)
	}
	return n, err
}

func (a Attributes) writer(f *os.File) (io.Writer, error) {
	if a.Writer == nil {
		return f, nil
	}
	return a.Writer(f)
}

// set sets owner, mode and times. A change of the owner clears bits of the mode.
func (a Attributes) set(f *os.File) error {
	if a.UID >= 0 || a.GID >= 0 {
		if err := f.Chown(a.UID, a.GID); err != nil {
			return err
		}
	}
	if err := unix.Fchmod(int(f.Fd()), a.Mode&0o1777); err != nil {
		return err
	}
	if a.Modified.IsZero() {
		return nil
	}
	t := unix.NsecToTimespec(a.Modified.UnixNano())
	return unix.UtimesNanoAt(unix.AT_FDCWD, self(f), []unix.Timespec{t, t}, 0)
}

// overwrite copies a complete file over one that cannot be replaced.
func overwrite(ctx context.Context, from *os.File, dir *os.Root, base string, a Attributes) error {
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return err
	}
	at, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer at.Close()
	fd, err := unix.Openat(int(at.Fd()), base, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	to := os.NewFile(uintptr(fd), base)
	defer to.Close()
	_, err = Overwrite(ctx, to, a, from)
	return err
}

// Overwrite writes the content of r to the file that f refers to, an O_PATH descriptor, in
// place of its own. It keeps the file's owner, mode and times, and replaces its extended
// attributes. ErrType if it is no regular file: a device or a named pipe is not opened.
func Overwrite(ctx context.Context, f *os.File, a Attributes, r io.Reader) (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return 0, fmt.Errorf("%w: it is no regular file", ErrType)
	}
	out, err := reopen(f, unix.O_WRONLY)
	if err != nil {
		return 0, err
	}
	defer out.Close()
	w, err := a.writer(out)
	if err != nil {
		return 0, err
	}
	if err := out.Truncate(0); err != nil {
		return 0, err
	}
	n, err := copyBytes(ctx, w, r, a.Seen)
	if err == nil {
		err = replaceExtended(out, a.Extended)
	}
	return n, cmp.Or(err, out.Close())
}
