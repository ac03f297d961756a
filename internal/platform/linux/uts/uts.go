// Package uts sets the host name of other UTS namespaces, uts_namespaces(7).
package uts

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// SetHostname sets the host name that a process sees, and with it all processes of
// its UTS namespace. It is refused where that namespace is this process's own. It
// needs CAP_SYS_ADMIN. The caller makes sure that the pid is still whom it means
// (a pidfd that has not exited, asked after the call).
func SetHostname(pid int, name string) error {
	target, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/uts")
	if err != nil {
		return fmt.Errorf("set a host name: %w", err)
	}
	defer target.Close()
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/uts")
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("set a host name: %w", err)
	}
	defer home.Close()
	if err := differ(target, home); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("set the host name of process %d: %w", pid, err)
	}
	if err := unix.Setns(int(target.Fd()), unix.CLONE_NEWUTS); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter the UTS namespace of process %d: %w", pid, err)
	}
	if err = unix.Sethostname([]byte(name)); err != nil {
		err = fmt.Errorf("set the host name of process %d: %w", pid, err)
	}
	if e := unix.Setns(int(home.Fd()), unix.CLONE_NEWUTS); e != nil {
		// The thread stays locked and ends with its goroutine.
		return errors.Join(err, fmt.Errorf("leave the UTS namespace of process %d: %w", pid, e))
	}
	runtime.UnlockOSThread()
	return err
}

// differ is why the first may not be entered: it is the second.
func differ(target, home *os.File) error {
	x, err := target.Stat()
	if err != nil {
		return err
	}
	y, err := home.Stat()
	if err == nil && os.SameFile(x, y) {
		err = errors.New("it has this process's own")
	}
	return err
}
