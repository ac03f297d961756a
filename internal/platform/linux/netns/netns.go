// Package netns runs functions in other network namespaces (network_namespaces(7)).
package netns

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// own is the calling thread's namespace.
const own = "/proc/thread-self/ns/net"

// OfProcess is the path of a process's namespace; 0 is this process.
func OfProcess(pid int) string {
	if pid == 0 {
		return "/proc/self/ns/net"
	}
	return "/proc/" + strconv.Itoa(pid) + "/ns/net"
}

// ID identifies a namespace as long as it exists: by the device and inode of its
// file.
func ID(path string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", fmt.Errorf("network namespace %s: %w", path, err)
	}
	return fmt.Sprintf("%d-%d", st.Dev, st.Ino), nil
}

// Do runs f on a thread in the namespace at path. Sockets that f opens and processes
// that it starts are in that namespace permanently; goroutines that it starts are
// not. An empty path is the present namespace. f runs on the calling goroutine, and
// its thread lives on, so that f may fail a test or start a process with a death
// signal.
func Do(path string, f func() error) (err error) {
	if path == "" {
		return f()
	}
	target, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open a network namespace: %w", err)
	}
	defer target.Close()
	runtime.LockOSThread()
	home, err := os.Open(own)
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open this network namespace: %w", err)
	}
	defer home.Close()
	if err := unix.Setns(int(target.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter the network namespace %s: %w", path, err)
	}
	defer func() {
		if e := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); e != nil {
			// The thread stays locked and ends with its goroutine.
			err = errors.Join(err, fmt.Errorf("leave the network namespace %s: %w", path, e))
			return
		}
		runtime.UnlockOSThread()
	}()
	return f()
}
