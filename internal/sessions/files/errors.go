package files

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/filetree"
)

// Error is an error with a text of its own, and the sentinel that callers test for.
type Error struct {
	text string
	kind error
}

func (e *Error) Error() string { return e.text }

// Unwrap returns the sentinel, or an Error with it.
func (e *Error) Unwrap() error { return e.kind }

// errLeft ends the calls of a session that ends.
var errLeft = &Error{"the session ends", holdfast.ErrNotFound}

// clean returns a path without ".", ".." and doubled slashes.
func clean(p string) (string, error) {
	switch {
	case !strings.HasPrefix(p, "/"):
		return "", &Error{fmt.Sprintf("the path %q is not absolute", bounded(p)), holdfast.ErrBadFile}
	case len(p) > maxPath, strings.ContainsRune(p, 0):
		return "", &Error{fmt.Sprintf("the path %q is too long, or has a zero byte", bounded(p)), holdfast.ErrBadFile}
	}
	return path.Clean(p), nil
}

func bounded(s string) string {
	const most = 200
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

// reason is what an error of the kernel means for a file.
type reason struct {
	err  error
	text string
	kind error
	hint string
}

func reasons() []reason {
	return []reason{
		{unix.ENOENT, "there is no such file", holdfast.ErrNotFound, "`holdfast session files ls` lists a directory"},
		{unix.EEXIST, "it exists already", holdfast.ErrExists, ""},
		{unix.ENOTEMPTY, "the directory is not empty", holdfast.ErrExists, "--recursive removes its content, too"},
		{unix.ENOTDIR, "it is not in a directory, or is none", holdfast.ErrBadFile, ""},
		{unix.EISDIR, "it is a directory", holdfast.ErrBadFile, ""},
		{unix.ELOOP, "its links lead nowhere, or into /proc", holdfast.ErrBadFile, ""},
		{unix.EXDEV, "it is on another file system, or a link leads out of the directory", holdfast.ErrBadFile, "copy it"},
		{unix.EROFS, "the file system is read-only", holdfast.ErrBadFile, ""},
		{unix.EBUSY, "it is a mount point", holdfast.ErrBadFile, ""},
		{unix.ENAMETOOLONG, "the name is too long", holdfast.ErrBadFile, ""},
		{unix.EINVAL, "the file system does not allow it", holdfast.ErrBadFile, ""},
		{unix.EOPNOTSUPP, "the file system has no extended attributes", holdfast.ErrBadFile, ""},
		{unix.EPERM, "the file system does not allow it", holdfast.ErrBadFile, ""},
		{unix.EACCES, "the file system does not allow it", holdfast.ErrBadFile, ""},
		{unix.EOVERFLOW, "the file system has other users", holdfast.ErrBadFile, ""},
		{unix.ENOSPC, "no space is left", holdfast.ErrNoSpace, ""},
		{unix.EDQUOT, "no space is left of the quota", holdfast.ErrNoSpace, ""},
		{unix.EFBIG, "the file is too large", holdfast.ErrNoSpace, ""},
		{unix.EAGAIN, "the container changes it all the time", holdfast.ErrBusy, ""},
		{unix.EMFILE, "too many watches of this host's root user exist", holdfast.ErrBusy, "raise fs.inotify.max_user_instances"},
		{filetree.ErrType, "", holdfast.ErrExists, ""},
		{filetree.ErrTooDeep, "", holdfast.ErrBadFile, ""},
		{filetree.ErrChanged, "", holdfast.ErrBusy, ""},
		{filetree.ErrArchive, "", holdfast.ErrBadFile, ""},
		{tar.ErrHeader, "the archive is not valid", holdfast.ErrBadFile, ""},
	}
}

// explain returns an error for users.
func explain(op, path string, err error) error {
	if err == nil {
		return nil
	}
	where := op + " " + bounded(path)
	if own, ok := errors.AsType[*Error](err); ok {
		return holdfast.WithHint(&Error{where + ": " + own.text, own}, holdfast.HintOf(err))
	}
	if strings.Contains(err.Error(), "path escapes") { // os.Root has no sentinel for it
		return &Error{where + ": a link leads out of the directory", holdfast.ErrBadFile}
	}
	for _, r := range reasons() {
		if errors.Is(err, r.err) && !errors.Is(err, context.DeadlineExceeded) {
			text := r.text
			if text == "" {
				text = err.Error()
			} else if p, ok := errors.AsType[*fs.PathError](err); ok && p.Path != path && len(p.Path) > 0 && p.Path[0] != '.' {
				text = bounded(p.Path) + ": " + text
			}
			out := error(&Error{where + ": " + text, r.kind})
			if r.hint != "" {
				out = holdfast.WithHint(out, r.hint)
			}
			return out
		}
	}
	return fmt.Errorf("%s: %w", where, err)
}
