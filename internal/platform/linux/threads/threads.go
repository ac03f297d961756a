// Package threads spends threads: on work that leaves one changed for good, as by
// unshare(2) or setns(2).
package threads

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Spend runs f on a thread that ends behind it, whatever f has made of it, and returns
// what f returned. Any goroutine may call it.
//
// It is never the process's first thread. That one does not end: the runtime lays it
// aside, in the namespaces that it is in, which lives as long as the process; and what
// proc(5) has in /proc/self is what it has of that thread.
func Spend(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			defer runtime.UnlockOSThread()
			done <- Spend(f) // on another, because this one is taken meanwhile
			return
		}
		done <- f() // and the thread is not unlocked: so it ends with the goroutine
	}()
	return <-done
}
