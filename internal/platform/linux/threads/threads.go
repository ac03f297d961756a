// Package threads runs functions on threads that end afterwards, for work that
// changes a thread permanently, such as unshare(2) or setns(2).
package threads

import (
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Spend runs f on a thread that ends after f, and returns f's result. Any goroutine
// may call it.
//
// It is never the process's first thread. The runtime cannot end that thread: it
// parks it, in its present namespaces, for the life of the process, and /proc/self
// (proc(5)) describes that thread.
func Spend(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			defer runtime.UnlockOSThread()
			done <- Spend(f) // on another thread, because this goroutine occupies the first one
			return
		}
		done <- f() // the thread stays locked, so it ends with the goroutine
	}()
	return <-done
}

// CPUTime returns the CPU time that the calling thread has used. The goroutine must be
// locked to its thread.
func CPUTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) // fails only for invalid addresses
	return time.Duration(ts.Nano())
}

// ProcessTime returns the CPU time that all threads of this process have used.
func ProcessTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts) // as in CPUTime
	return time.Duration(ts.Nano())
}
