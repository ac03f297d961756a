package kfile

import (
	"context"
	"errors"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// ErrStuck means that the kernel did not come back from a write that it was asked
// to break off. It may still go through.
var ErrStuck = errors.New("the kernel does not let go of it")

// How a write is broken off: a signal now and then, because one that comes before
// the write begins is lost, for so long.
const (
	breakEvery = time.Millisecond
	breakLimit = 5 * time.Second
)

// WriteUntil is Write for files where the kernel works on what was written before
// it returns, as memory.reclaim and memory.force_empty: when ctx is done the write
// is broken off by a signal to its thread, and ctx's error is returned. What the
// kernel has done by then stays done. ErrStuck.
func WriteUntil(ctx context.Context, path, value string) error {
	if err := ctx.Err(); err != nil {
		return pathError("write", path, err)
	}
	fd, err := open(path, unix.O_WRONLY)
	if err != nil {
		return err
	}
	began, ended := make(chan int, 1), make(chan error, 1)
	go func() {
		defer unix.Close(fd)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		began <- unix.Gettid()
		for {
			_, err := unix.Write(fd, []byte(value))
			if err == unix.EINTR && ctx.Err() == nil { // somebody else's signal
				continue
			}
			ended <- err
			return
		}
	}()
	thread := <-began
	select {
	case err := <-ended:
		return written(path, err)
	case <-ctx.Done():
	}
	tick := time.NewTicker(breakEvery)
	defer tick.Stop()
	limit := time.NewTimer(breakLimit)
	defer limit.Stop()
	for {
		// The runtime takes SIGURG for its own, and does nothing about it. The
		// thread may have ended just now.
		_ = unix.Tgkill(os.Getpid(), thread, unix.SIGURG)
		select {
		case err := <-ended:
			if err == unix.EINTR {
				err = ctx.Err()
			}
			return written(path, err)
		case <-limit.C:
			return pathError("write", path, ErrStuck)
		case <-tick.C:
		}
	}
}

func written(path string, err error) error {
	if err == nil {
		return nil
	}
	return pathError("write", path, err)
}
