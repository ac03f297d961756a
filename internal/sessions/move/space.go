package move

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/hostload"
)

// reservations is the space that is reserved for images, by file system.
type reservations struct {
	mu    sync.Mutex
	bytes map[uint64]int64 // by device
}

func newReservations() *reservations { return &reservations{bytes: map[uint64]int64{}} }

// free returns the bytes that images may take in dir, beside the reserved ones.
func (r *reservations) free(dir string) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.freeLocked(dir)
}

func (r *reservations) freeLocked(dir string) int64 {
	return max(0, usable(dir)-r.bytes[deviceOf(dir)])
}

// reserve reserves space for one image, in memory or on disk, and for the same image
// in the image store, until release is called.
func (m *Mover) reserve(bytes int64) (release func(), onDisk bool, err error) {
	r := m.space
	r.mu.Lock()
	defer r.mu.Unlock()
	at := m.work
	if onDisk = bytes > r.freeLocked(at); onDisk {
		at = m.spill
	}
	if bytes > r.freeLocked(at) {
		return nil, onDisk, fmt.Errorf("neither moving.staged nor moving.spill has space for an image of %.1f MB", float64(bytes)/1e6)
	}
	staged, stored := deviceOf(at), deviceOf(m.images.o.Dir) // possibly the same device
	r.bytes[staged] += bytes
	if bytes > min(m.images.limits.Space-m.snapshotBytes(), r.freeLocked(m.images.o.Dir)) {
		r.bytes[staged] -= bytes
		return nil, onDisk, fmt.Errorf("moving.suspended has no space for an image of %.1f MB", float64(bytes)/1e6)
	}
	r.bytes[stored] += bytes
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.bytes[staged] -= bytes
		r.bytes[stored] -= bytes
	}, onDisk, nil
}

// usable returns the bytes that images may take in dir: nine tenths of the free bytes.
// It returns 0 for "" and after an error. The files of a tmpfs are memory, so the available
// memory of the host is also a limit there.
func usable(dir string) int64 {
	var fs unix.Statfs_t
	if dir == "" || unix.Statfs(dir, &fs) != nil {
		return 0
	}
	free := int64(fs.Bavail) * fs.Bsize
	if fs.Type == unix.TMPFS_MAGIC {
		memory, err := hostload.New("/proc").Memory()
		if err != nil {
			return 0
		}
		free = min(free, memory.Available)
	}
	return free / 10 * 9
}

// deviceOf returns the device of the file system of dir. After an error it returns 0, as
// usable does.
func deviceOf(dir string) uint64 {
	var st unix.Stat_t
	if dir == "" || unix.Stat(dir, &st) != nil {
		return 0
	}
	return st.Dev
}
