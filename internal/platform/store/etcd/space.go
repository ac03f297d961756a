package etcd

import (
	"errors"
	"fmt"

	"go.etcd.io/etcd/server/v3/storage/wal"
	"golang.org/x/sys/unix"
)

// etcd ends itself when a write to its log or its database finds the disk full
// (raft.go: "failed to save Raft hard state and entries"; batch_tx.go: "failed to
// commit tx"), and cannot be restarted within the process. So the server refuses new
// records while there is still room for its other writes:
//
//   - The log is allocated in segments (wal.SegmentSizeBytes, 64 MB), always one
//     ahead. If the one ahead cannot be had, the server dies when it needs it,
//     so a segment must be left.
//   - The database grows in steps of 16 MiB that are holes at first; fillHoles
//     gives them blocks, so that a commit needs none.
const headroom = 32 << 20

// minFree is the free space under which new records are refused.
func minFree() uint64 { return uint64(wal.SegmentSizeBytes) + headroom }

// minFreeNew is the free space for a new data directory: two segments and a database,
// and minFree.
func minFreeNew() uint64 { return 2*uint64(wal.SegmentSizeBytes) + minFree() }

// needFree returns an error with a hint if dir's filesystem has fewer than want bytes
// free.
func needFree(dir string, want uint64) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("read the free space of %s: %w", dir, err)
	}
	if free := fs.Bavail * uint64(fs.Bsize); free < want {
		return noSpace(
			fmt.Sprintf("%s has %d MiB free, %d are needed", dir, free>>20, (want+1<<20-1)>>20),
			"make room on the filesystem of "+dir+"; what is stored there is safe")
	}
	return nil
}

// fillHoles allocates blocks for the whole length of the file. A filesystem without
// fallocate(2) is no error: the free space is checked before each write anyway.
func fillHoles(path string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("look at %s: %w", path, err)
	}
	err = unix.Fallocate(fd, 0, 0, st.Size)
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("allocate %s: %w", path, err)
	}
	return nil
}
