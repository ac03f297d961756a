package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/boltfile"
)

const (
	// growth is the size of the steps in which a file of more than this size grows.
	growth = 1 << 20
	// minFree is the free space under which new records are refused. The rest is for
	// releases: they, too, write new pages.
	minFree = 16 << 20
	// callTimeout bounds each call. Each takes two flushes of the disk.
	callTimeout = 2 * time.Second
)

// Open opens the store in a file, and makes the file if it is missing. ErrInUse if another
// process has it open, ErrNoSpace, or an error with a hint if it is broken or not readable.
func Open(path string, c Config) (*Store, error) {
	f := &file{path: path}
	if err := f.open(); err != nil {
		return nil, fmt.Errorf("open the store of ownership: %w", err)
	}
	if c.Timeout == 0 {
		c.Timeout = callTimeout
	}
	s, err := New(f, c)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the store of ownership: %w", err), f.Close())
	}
	return s, nil
}

// file is a Disk in a bbolt file.
type file struct {
	path string
	db   *bbolt.DB
	size int64 // of which all blocks are allocated
}

func (f *file) open() error {
	if err := f.Room(); err != nil {
		return err
	}
	return f.guard(func() (err error) {
		// The shortest timeout: bbolt tries once.
		f.db, err = boltfile.Open(f.path, bbolt.Options{Timeout: time.Nanosecond})
		if errors.Is(err, holdfast.ErrBusy) {
			return holdfast.WithHint(fmt.Errorf("%w: %s", ErrInUse, f.path), "another holdfast agent runs with this data directory: stop it, or choose another directory")
		}
		if err != nil {
			return err
		}
		f.db.AllocSize = growth
		return f.allocate()
	})
}

// Load reads all values, and so every page in use.
func (f *file) Load(each func(bucket, key string, value []byte) error) error {
	return f.guard(func() error {
		return f.db.View(func(tx *bbolt.Tx) error {
			return tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
				return b.ForEach(func(key, value []byte) error { return each(string(name), string(key), value) })
			})
		})
	})
}

// guard calls do, and adds a hint to its error.
func (f *file) guard(do func() error) error { return f.explain(boltfile.Guard(do)) }

// Commit makes the changes in one transaction.
func (f *file) Commit(changes []Change) error {
	return f.guard(func() error {
		if err := f.db.Update(func(tx *bbolt.Tx) error { return change(tx, changes) }); err != nil {
			return fmt.Errorf("write %s: %w", f.path, err)
		}
		return f.allocate()
	})
}

func change(tx *bbolt.Tx, changes []Change) error {
	for _, c := range changes {
		b, err := tx.CreateBucketIfNotExists([]byte(c.Bucket))
		switch {
		case err != nil:
		case c.Value == nil:
			err = b.Delete([]byte(c.Key))
		default:
			err = b.Put([]byte(c.Key), c.Value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// allocate gives the file all blocks of its length, so that a release finds room for its
// pages on a full disk, too. A filesystem without fallocate(2), or without room, is no
// error: the free space is checked before each new record.
func (f *file) allocate() error {
	info, err := os.Stat(f.path)
	if err != nil {
		return fmt.Errorf("look at the file: %w", err)
	}
	if info.Size() <= f.size {
		return nil
	}
	fd, err := unix.Open(f.path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the file: %w", err)
	}
	defer unix.Close(fd)
	err = unix.Fallocate(fd, 0, 0, info.Size())
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("allocate the file: %w", err)
	}
	f.size = info.Size()
	return nil
}

// Room returns ErrNoSpace if the filesystem has less than minFree.
func (f *file) Room() error {
	dir := filepath.Dir(f.path)
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("read the free space of %s: %w", dir, err)
	}
	if free := fs.Bavail * uint64(fs.Bsize); free < minFree {
		return noSpace(dir, fmt.Errorf("%d MiB are free, %d are needed", free>>20, minFree>>20))
	}
	return nil
}

func (f *file) Close() error {
	if err := f.db.Close(); err != nil {
		return fmt.Errorf("close %s: %w", f.path, err)
	}
	return nil
}

func noSpace(dir string, err error) error {
	return holdfast.WithHint(fmt.Errorf("%w: %w: %w", holdfast.ErrStore, ErrNoSpace, err),
		"make room on the filesystem of "+dir+"; what is stored there is safe")
}

// explain adds a hint.
func (f *file) explain(err error) error {
	dir, hint := filepath.Dir(f.path), ""
	switch {
	case err == nil, errors.Is(err, ErrInUse), errors.Is(err, ErrNoSpace), errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return noSpace(dir, err)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		hint = dir + " has to belong to the user of the agent, normally root"
	case errors.Is(err, syscall.EROFS):
		hint = "the filesystem of " + dir + " is mounted read-only"
	case errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ENOTDIR):
		hint = f.path + " has to be a file of the agent: move what is there away"
	case errors.Is(err, syscall.EIO):
		hint = "the disk under " + dir + " reports errors: see the kernel's log"
	default:
		hint = f.path + " seems to be broken: restore it, or move it away to begin with an empty store; containers that run are then strays"
	}
	return holdfast.WithHint(err, hint)
}
