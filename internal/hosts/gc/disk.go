package gc

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// DiskOf returns the space of the file system that contains dir, from statfs(2).
// Blocks reserved for root count as used, as in df(1).
func DiskOf(dir string) (Disk, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return Disk{}, fmt.Errorf("read the free space of %s: %w", dir, err)
	}
	block := int64(st.Frsize)
	if block == 0 {
		block = int64(st.Bsize)
	}
	free := int64(st.Bavail) * block
	taken := int64(st.Blocks-st.Bfree) * block
	return Disk{Total: taken + free, Free: free, Inodes: int64(st.Files), FreeInodes: int64(st.Ffree)}, nil
}
