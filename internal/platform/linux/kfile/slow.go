package kfile

import (
	"context"
	"errors"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// ErrStuck means that a write has not returned after it was interrupted. It may still
// complete.
var ErrStuck = errors.New("the write does not return")

// The interval of the signals that interrupt a write, and how long they are sent. One
// signal is not enough: a signal before the write begins has no effect.
const (
	breakEvery = time.Millisecond
	breakLimit = 5 * time.Second
)

// WriteUntil is Write for files such as memory.reclaim and memory.force_empty, where
// the write returns when the kernel has done the work. When ctx is done it interrupts
// the write by a signal to its thread, and returns ctx's error. Work that the kernel
// has done stays done. ErrStuck.
func WriteUntil(ctx context.Context, path, value string) error {
	if err := ctx.Err(); err != nil {
		return pathError("write", path, err)
	}
	fd, err := open(unix.AT_FDCWD, path, unix.O_WRONLY)
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
			if err == unix.EINTR && ctx.Err() == nil { // an unrelated signal
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
		// The Go runtime uses SIGURG for preemption and ignores others. The thread
		// may have ended just now.
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
