package owner

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/proc"
)

// If /proc hides the processes of other users (hidepid=2), a live process does not count
// as dead, and a dead process does.
func TestFateOfHidden(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: mounting /proc takes root")
	}
	self, err := Self()
	if err != nil {
		t.Fatal(err)
	}
	first, err := proc.Host.Stat(1) // root's, and lives as long as this test
	if err != nil {
		t.Fatal(err)
	}
	living, free := self, self
	living.Pid, living.Start = first.Pid, first.Start
	free.Pid = 1<<22 + 1 // over the kernel's PID_MAX_LIMIT
	var hidden, gone Fate
	var visible error
	asNobody(t, func() {
		_, visible = proc.Host.Stat(first.Pid)
		hidden, gone = self.FateOf(living), self.FateOf(free)
	})
	if !errors.Is(visible, fs.ErrNotExist) {
		t.Fatalf("/proc does not hide others' processes: %v", visible)
	}
	if seen := self.FateOf(living); hidden != Unknown || gone != Dead || seen != Alive {
		t.Errorf("hidden %d, gone %d, seen %d", hidden, gone, seen)
	}
}

// asNobody calls do as another user, in a mount namespace whose /proc has hidepid=2. The
// user and the namespace belong to one thread and end with it.
func asNobody(t *testing.T, do func()) {
	t.Helper()
	done := make(chan error)
	go onOwnThread(func() {
		err := becomeNobody()
		if err == nil {
			do()
		}
		done <- err
	})
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// onOwnThread calls do on a thread that ends with its goroutine. The first thread of the
// process does not end, and /proc/self shows that thread; do runs on another one.
func onOwnThread(do func()) {
	runtime.LockOSThread() // and not unlocked: that ends it
	if unix.Gettid() != unix.Getpid() {
		do()
		return
	}
	defer runtime.UnlockOSThread()
	done := make(chan struct{})
	go func() {
		defer close(done)
		onOwnThread(do)
	}()
	<-done
}

func becomeNobody() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, "hidepid=2"); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	// The system calls themselves: package syscall's change all threads.
	const unprivileged = 65534
	for _, call := range [][4]uintptr{
		{unix.SYS_SETGROUPS, 0, 0, 0},
		{unix.SYS_SETRESGID, unprivileged, unprivileged, unprivileged},
		{unix.SYS_SETRESUID, unprivileged, unprivileged, unprivileged},
	} {
		if _, _, errno := unix.RawSyscall(call[0], call[1], call[2], call[3]); errno != 0 {
			return fmt.Errorf("become another user: %w", errno)
		}
	}
	return nil
}
