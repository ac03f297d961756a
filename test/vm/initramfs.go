package vm

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"holdfast/test/vm/guest"
)

// writeInitramfs writes an archive with the files, by their path in the machine,
// and the order for pid 1.
func writeInitramfs(out io.Writer, files map[string]string, order guest.Order) error {
	buffered := bufio.NewWriter(out)
	a := archive{out: buffered, dirs: map[string]bool{"/": true}}
	for _, to := range slices.Sorted(maps.Keys(files)) {
		if err := a.copy(to, files[to]); err != nil {
			return err
		}
	}
	b, err := json.Marshal(order)
	if err != nil {
		return err
	}
	if err := a.add(guest.OrderFile, unix.S_IFREG|0o644, b); err != nil {
		return err
	}
	if err := a.entry("TRAILER!!!", 0, nil); err != nil {
		return err
	}
	return buffered.Flush()
}

// archive is a cpio archive in the format "newc" that kernels unpack
// (Documentation/driver-api/early-userspace/buffer-format.rst).
type archive struct {
	out   io.Writer
	dirs  map[string]bool
	inode int
}

func (a *archive) copy(to, from string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return a.add(to, unix.S_IFREG|uint32(info.Mode().Perm()), content)
}

// add writes an entry, after the directories above it that are still missing.
func (a *archive) add(name string, mode uint32, content []byte) error {
	name = path.Clean("/" + name)
	if dir := path.Dir(name); !a.dirs[dir] {
		a.dirs[dir] = true
		if err := a.add(dir, unix.S_IFDIR|0o755, nil); err != nil {
			return err
		}
	}
	return a.entry(name[1:], mode, content)
}

func (a *archive) entry(name string, mode uint32, content []byte) error {
	a.inode++
	// magic, ino, mode, uid, gid, nlink, mtime, filesize, maj, min, rmaj, rmin,
	// namesize with its NUL, chksum
	header := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		a.inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0)
	if err := a.padded([]byte(header + name + "\x00")); err != nil {
		return err
	}
	return a.padded(content)
}

// padded writes and pads to a multiple of four bytes.
func (a *archive) padded(b []byte) error {
	if _, err := a.out.Write(b); err != nil {
		return err
	}
	_, err := a.out.Write(make([]byte, -len(b)&3))
	return err
}
