package filenode

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"holdfast"
)

// name is that of this program in a container's identity directory.
const name = "holdfast"

// Program makes this program visible in containers. A container sees a hard link to a copy
// beside the identity directories. The host does not run the copy, and this program's own file
// may be on another file system.
type Program struct{ mu sync.Mutex }

// Show links the program in a container's identity directory, where an agent of another version
// may have left another one. Sessions that began without that directory have no files. Any
// goroutine may call it.
func (p *Program) Show(dir string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return holdfast.WithHint(fmt.Errorf("its container began without the program that reads and writes files under gVisor: %w", holdfast.ErrBadFile),
			"name the runtime in the template, and start the session again")
	}
	all := filepath.Dir(dir) + "." + name
	err := renew(all)
	if err == nil && !same(all, filepath.Join(dir, name)) {
		temp := filepath.Join(dir, "."+name)
		_ = os.Remove(temp) // of an agent that was killed
		if err = os.Link(all, temp); err == nil {
			err = os.Rename(temp, filepath.Join(dir, name))
		}
	}
	if err != nil {
		return fmt.Errorf("give the container the program for files: %w", err)
	}
	return nil
}

func same(a, b string) bool {
	fa, err1 := os.Stat(a)
	fb, err2 := os.Stat(b)
	return err1 == nil && err2 == nil && os.SameFile(fa, fb)
}

// renew copies this program to path, unless a copy with its size and time is there.
func renew(path string) error {
	in, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer in.Close()
	own, err := in.Stat()
	if err != nil {
		return err
	}
	if have, err := os.Stat(path); err == nil && have.Size() == own.Size() && have.ModTime().Equal(own.ModTime()) {
		return nil
	}
	temp := path + ".new"
	_ = os.Remove(temp) // of an agent that was killed
	out, err := os.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	err = cmp.Or(err, out.Chmod(0o755), out.Sync(), out.Close()) // the umask may forbid what the container needs
	if err == nil {
		err = os.Chtimes(temp, own.ModTime(), own.ModTime())
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		_ = os.Remove(temp)
	}
	return err
}
