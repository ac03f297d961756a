package files

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"sort"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/filetree"
	"holdfast/internal/platform/linux/inroot"
)

// Stat describes a file. With follow it is the one that a link leads to, and its Path is
// the one without links.
func (f *Files) Stat(ctx context.Context, key holdfast.SessionKey, p string, follow bool) (holdfast.File, error) {
	return described(f.call(ctx, key, p, request{Op: "stat", Follow: follow}, streams{}))
}

// described returns the file of a reply.
func described(out reply, err error) (holdfast.File, error) {
	if err != nil || out.File == nil {
		return holdfast.File{}, err
	}
	return *out.File, nil
}

func stat(_ context.Context, t *tree, p string, q request, _ streams) (reply, error) {
	flags := unix.O_PATH
	if !q.Follow {
		flags |= unix.O_NOFOLLOW
	}
	file, err := t.root.Open(p, flags)
	if err != nil {
		return reply{}, err
	}
	defer file.Close()
	if q.Follow {
		p = realPath(file, p)
	}
	return t.reply(file, p)
}

// reply describes an open file.
func (t *tree) reply(f *os.File, p string) (reply, error) {
	about, err := t.describe(f, p)
	return reply{File: &about}, err
}

// realPath returns the kernel's path of an open file, or p if it has none.
func realPath(f *os.File, p string) string {
	if real, err := os.Readlink(inroot.Self(f)); err == nil && strings.HasPrefix(real, "/") && !strings.HasSuffix(real, " (deleted)") {
		return real
	}
	return p
}

// describe describes an open file.
func (t *tree) describe(f *os.File, p string) (holdfast.File, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return holdfast.File{}, err
	}
	out := t.fileOf(st, p)
	if out.Type == holdfast.SymbolicLink {
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(int(f.Fd()), "", buf)
		if err != nil {
			return out, err
		}
		out.Target = string(buf[:n])
	}
	if out.Type == holdfast.RegularFile || out.Type == holdfast.Directory { // others have none (xattr(7))
		out.Attributes = filetree.Extended(f, holdfast.MaxAttributes)
	}
	return out, nil
}

func (t *tree) fileOf(st unix.Stat_t, p string) holdfast.File {
	return holdfast.File{
		Path: p, Name: path.Base(p), Type: typeOf(st.Mode), Size: st.Size, Mode: fmt.Sprintf("%04o", st.Mode&0o7777),
		UID: t.root.UIDs.Inside(int(st.Uid)), GID: t.root.GIDs.Inside(int(st.Gid)), Modified: time.Unix(st.Mtim.Unix()).UTC(),
	}
}

func typeOf(mode uint32) holdfast.FileType {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return holdfast.RegularFile
	case unix.S_IFDIR:
		return holdfast.Directory
	case unix.S_IFLNK:
		return holdfast.SymbolicLink
	case unix.S_IFIFO:
		return holdfast.NamedPipe
	case unix.S_IFSOCK:
		return holdfast.SocketFile
	}
	return holdfast.DeviceFile
}

// List lists a directory, by name: at most limit entries, and at most 10,000. more reports
// that there are others.
func (f *Files) List(ctx context.Context, key holdfast.SessionKey, p string, limit int) (list []holdfast.File, more bool, err error) {
	if limit <= 0 || limit > maxList {
		limit = maxList
	}
	out, err := f.call(ctx, key, p, request{Op: "list", Limit: limit}, streams{})
	sort.Slice(out.List, func(i, j int) bool { return out.List[i].Name < out.List[j].Name })
	return out.List, out.More, err
}

func list(ctx context.Context, t *tree, p string, q request, _ streams) (out reply, err error) {
	dir, err := t.root.Open(p, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return out, err
	}
	defer dir.Close()
	out.List, out.More, err = t.list(ctx, dir, p, q.Limit)
	return out, err
}

func (t *tree) list(ctx context.Context, dir *os.File, p string, limit int) (list []holdfast.File, more bool, err error) {
	for size := 0; ; {
		names, err := dir.Readdirnames(128)
		for _, name := range names {
			if len(list) == limit || size > maxListBytes {
				return list, true, nil
			}
			one, err := t.entry(dir, name, path.Join(p, name))
			if errors.Is(err, fs.ErrNotExist) {
				continue // it was removed meanwhile
			}
			if err != nil {
				return nil, false, err
			}
			list, size = append(list, one), size+len(one.Path)+len(one.Name)+len(one.Target)
			for name, value := range one.Attributes {
				size += len(name) + len(value)
			}
		}
		if err == io.EOF || errors.Is(err, fs.ErrNotExist) {
			return list, false, nil
		}
		if err := cmp.Or(err, context.Cause(ctx)); err != nil {
			return nil, false, err
		}
	}
}

// entry describes an entry of an open directory.
func (t *tree) entry(dir *os.File, name, p string) (holdfast.File, error) {
	f, err := openAt(dir, name, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return holdfast.File{}, err
	}
	defer f.Close()
	return t.describe(f, p)
}

// openAt opens an entry of a directory. flags have O_PATH or O_DIRECTORY, so that no device
// is opened, and O_NOFOLLOW.
func openAt(dir *os.File, name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path.Join(dir.Name(), name), Err: err}
	}
	return os.NewFile(uintptr(fd), path.Join(dir.Name(), name)), nil
}
