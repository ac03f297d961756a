// Package diskdir chooses a directory for temporary files that must be on a disk. On many
// systems /tmp is a tmpfs, whose files are memory.
package diskdir

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Temp returns the system's directory for temporary files ($TMPDIR, or else /tmp) if it is not
// in memory, and otherwise /var/tmp, which is for larger and longer-lived temporary files
// (file-hierarchy(7)). Any goroutine may call it.
func Temp() string {
	dir := os.TempDir()
	if inMemory, err := InMemory(dir); err == nil && !inMemory {
		return dir
	}
	return "/var/tmp"
}

// InMemory reports whether the files of an existing directory are memory and not on a disk. Any
// goroutine may call it.
func InMemory(dir string) (bool, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return false, fmt.Errorf("find the file system of %s: %w", dir, err)
	}
	return fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC, nil
}
