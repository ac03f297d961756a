// Package uts sets the host name of other UTS namespaces, uts_namespaces(7).
package uts

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/threads"
)

// SetHostname sets the host name that a process sees, and with it all processes of
// its UTS namespace. It fails if that namespace is this process's own. It needs
// CAP_SYS_ADMIN. The caller makes sure that the pid still belongs to the process it
// means, by checking after the call that a pidfd of it has not exited.
func SetHostname(pid int, name string) error {
	target, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/uts")
	if err != nil {
		return fmt.Errorf("set a host name: %w", err)
	}
	defer target.Close()
	err = threads.Spend(func() error {
		home, err := os.Open("/proc/thread-self/ns/uts")
		if err != nil {
			return err
		}
		defer home.Close()
		if err := differ(target, home); err != nil {
			return err
		}
		if err := unix.Setns(int(target.Fd()), unix.CLONE_NEWUTS); err != nil {
			return fmt.Errorf("enter its UTS namespace: %w", err)
		}
		return unix.Sethostname([]byte(name))
	})
	if err != nil {
		return fmt.Errorf("set the host name of process %d: %w", pid, err)
	}
	return nil
}

// differ returns an error if the two files are the same namespace.
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
