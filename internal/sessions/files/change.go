package files

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"holdfast"
)

// MakeDir makes a directory, and with parents those above it that are missing; then it may
// exist. New ones get the ids and the mode of o, by default 0 and 0755.
func (f *Files) MakeDir(ctx context.Context, key holdfast.SessionKey, p string, parents bool, o holdfast.WriteFile) (holdfast.File, error) {
	return described(f.call(ctx, key, p, request{Op: "mkdir", Parents: parents, Write: o}, streams{}))
}

func makeDir(_ context.Context, t *tree, p string, q request, _ streams) (reply, error) {
	dir, err := t.makeDir(p, q.Parents, q.Write)
	if err != nil {
		return reply{}, err
	}
	defer dir.Close()
	return t.reply(dir, p)
}

func (t *tree) makeDir(p string, parents bool, o holdfast.WriteFile) (*os.File, error) {
	at, missing, err := t.deepest(p)
	if err != nil {
		return nil, err
	}
	switch {
	case len(missing) == 0 && parents:
		return at, nil
	case len(missing) == 0:
		err = unix.EEXIST
	case len(missing) > 1 && !parents:
		err = unix.ENOENT
	case len(missing) > maxMade:
		err = &Error{fmt.Sprintf("more than %d directories are missing", maxMade), holdfast.ErrBadFile}
	}
	for i := 0; err == nil && i < len(missing); i++ {
		var next *os.File
		if next, err = t.makeIn(at, missing[i], parents, o); err == nil {
			at.Close()
			at = next
		}
	}
	if err != nil {
		at.Close()
		return nil, err
	}
	return at, nil
}

// maxMade bounds the directories that one call makes.
const maxMade = 256

// deepest opens the deepest directory of a path that exists, and returns the names below
// it.
func (t *tree) deepest(p string) (*os.File, []string, error) {
	var missing []string
	for {
		f, err := t.root.Open(p, unix.O_PATH|unix.O_DIRECTORY)
		if err == nil || !errors.Is(err, unix.ENOENT) || p == "/" {
			return f, missing, err
		}
		missing = append([]string{path.Base(p)}, missing...)
		p = path.Dir(p)
	}
}

// makeIn makes a directory in an open one, and opens it. A link of that name is an error:
// it leads nowhere, or was made meanwhile.
func (t *tree) makeIn(dir *os.File, name string, mayExist bool, o holdfast.WriteFile) (*os.File, error) {
	err := unix.Mkdirat(int(dir.Fd()), name, 0o700)
	if err == unix.EEXIST && mayExist {
		return openAt(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	}
	if err != nil {
		return nil, err
	}
	f, err := openAt(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	a, err := t.dirAttributes(o)
	if err == nil {
		err = f.Chown(a.uid, a.gid)
	}
	if err == nil {
		err = unix.Fchmod(int(f.Fd()), a.mode)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

type dirAttributes struct {
	mode     uint32
	uid, gid int
}

func (t *tree) dirAttributes(o holdfast.WriteFile) (a dirAttributes, err error) {
	a.mode = 0o755
	if o.Mode != nil {
		a.mode = *o.Mode & 0o1777
	}
	uid, gid := 0, 0
	if o.UID != nil {
		uid = *o.UID
	}
	if o.GID != nil {
		gid = *o.GID
	}
	a.uid, a.gid, err = t.owner(uid, gid)
	return a, err
}

// Move gives a file or a directory another path, in the same file system. Without replace
// nothing may have that path. Links are not followed, except in the directories above.
func (f *Files) Move(ctx context.Context, key holdfast.SessionKey, from, to string, replace bool) error {
	to, err := clean(to)
	if err != nil {
		return err
	}
	_, err = f.call(ctx, key, from, request{Op: "move", To: []byte(to), Replace: replace}, streams{})
	return err
}

func move(_ context.Context, t *tree, from string, q request, _ streams) (reply, error) {
	to := string(q.To)
	dir, base, err := t.parent(from)
	if err != nil {
		return reply{}, err
	}
	defer dir.Close()
	toDir, toBase, err := t.parent(to)
	if err != nil {
		return reply{}, fmt.Errorf("to %s: %w", bounded(to), err)
	}
	defer toDir.Close()
	flags := uint(unix.RENAME_NOREPLACE)
	if q.Replace {
		flags = 0
	}
	if strings.HasPrefix(to+"/", from+"/") && to != from {
		return reply{}, &Error{"it cannot be moved into itself", holdfast.ErrBadFile}
	}
	return reply{}, unix.Renameat2(int(dir.Fd()), base, int(toDir.Fd()), toBase, flags)
}
