package drill

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// fadvise is a logger that calls posix_fadvise(DONTNEED) after every line, as glog did.
// One page of the log is mapped, as by a program that reads it. That page cannot be
// dropped, so the kernel searches every CPU's batches for it each time
// (mapping_try_invalidate and lru_add_drain_all, mm/fadvise.c).
func fadvise() Drill {
	return Drill{
		Name: "fadvise", Short: "a logger that calls posix_fadvise after every line", Rule: "fadvise-storm",
		Size: 4, MaxSize: 64, Unit: "threads", Containers: true, OnDisk: true,
		parts: []part{{name: "logger", work: func(ctx context.Context, t Task, ready func()) error {
			ready()
			return threads(t.Size, func(i int) error { return logLines(ctx, filepath.Join(t.Dir, "log-"+strconv.Itoa(i))) })
		}}},
	}
}

// logSize is the size in bytes at which a log is truncated.
const logSize = 4 << 20

func logLines(ctx context.Context, name string) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, os.Getpagesize())); err != nil {
		return err
	}
	mapped, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return fmt.Errorf("mmap: %w", err)
	}
	defer func() { _ = unix.Munmap(mapped) }()
	line := make([]byte, 100)
	at := int64(os.Getpagesize())
	// Each logger writes about 2,000 lines per second, as a busy service does.
	tick := time.NewTicker(500 * time.Microsecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if _, err := f.WriteAt(line, at); err != nil {
			return err
		}
		if at += int64(len(line)); at > logSize {
			at = int64(os.Getpagesize())
		}
		if err := unix.Fadvise(int(f.Fd()), 0, logSize, unix.FADV_DONTNEED); err != nil {
			return fmt.Errorf("posix_fadvise: %w", err)
		}
	}
}

// dentries is a program that looks up files that do not exist.
func dentries() Drill {
	return Drill{
		Name: "dentries", Short: "a program that looks up millions of files that do not exist", Rule: "negative-dentries",
		Size: 3_000_000, MaxSize: 10_000_000, Unit: "names", Containers: true, OnDisk: true,
		parts: []part{{name: "seeker", work: func(ctx context.Context, t Task, ready func()) error {
			dir, err := unix.Open(t.Dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(dir)
			var st unix.Stat_t
			for i := 0; i < t.Size && ctx.Err() == nil; i++ {
				// It fails, because the file does not exist, which is the purpose.
				_ = unix.Fstatat(dir, "no-such-file-"+strconv.Itoa(i), &st, unix.AT_SYMLINK_NOFOLLOW)
			}
			ready()
			<-ctx.Done()
			return nil
		}}},
	}
}

// thrash is a program that repeatedly reads a file that is larger than its memory limit.
func thrash() Drill {
	const limit = 24 << 20
	return Drill{
		Name: "thrash", Short: "a program that needs three times the memory it may have", Rule: "own-limit",
		Size: 3, MaxSize: 32, Unit: "times the limit of 24 MiB", Containers: true, OnDisk: true,
		parts: []part{{name: "reader", limits: limits{memory: limit}, work: func(ctx context.Context, t Task, ready func()) error {
			f, err := os.OpenFile(filepath.Join(t.Dir, "data"), os.O_CREATE|os.O_RDWR, 0o600)
			if err != nil {
				return err
			}
			defer f.Close()
			size := int64(t.Size) * limit
			block := make([]byte, 1<<20)
			for at := int64(0); at < size && ctx.Err() == nil; at += int64(len(block)) {
				if _, err := f.WriteAt(block, at); err != nil {
					return err
				}
				// Pages that are not written back cannot be reclaimed: on a slow disk they would
				// fill the limit, and the kernel would kill the program.
				if err := f.Sync(); err != nil {
					return err
				}
			}
			b, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
			if err != nil {
				return fmt.Errorf("mmap: %w", err)
			}
			defer func() { _ = unix.Munmap(b) }()
			_ = unix.Madvise(b, unix.MADV_RANDOM) // without read-ahead
			ready()
			for ctx.Err() == nil {
				for range 100 {
					block[0] += b[rand.Int64N(size)] // kept, so that it is read
				}
			}
			return nil
		}}},
	}
}

// fsyncs is a program that writes small pieces and flushes each.
func fsyncs() Drill {
	return Drill{
		Name: "fsync", Short: "a program that flushes the disk after every small write", Rule: "slow-disk",
		Size: 4, MaxSize: 64, Unit: "threads", Containers: true, OnDisk: true,
		parts: []part{{name: "writer", work: func(ctx context.Context, t Task, ready func()) error {
			ready()
			return threads(t.Size, func(i int) error { return flushAll(ctx, filepath.Join(t.Dir, "data-"+strconv.Itoa(i))) })
		}}},
	}
}

func flushAll(ctx context.Context, name string) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	block := make([]byte, 4096)
	for at := int64(0); ctx.Err() == nil; at = (at + int64(len(block))) % (16 << 20) {
		if _, err := f.WriteAt(block, at); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
	}
	return nil
}
