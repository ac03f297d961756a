package cgroup

import (
	"fmt"
	"os"
	"time"

	"holdfast/internal/platform/linux/kfile"
	"holdfast/internal/platform/linux/proc"
)

// attachAgain is the time between two writes that keep the kernel's migration path
// active. It stays active for an RCU grace period after the last write, some ms at
// least.
const attachAgain = 5 * time.Millisecond

// ReadyAttach keeps the kernel's cgroup migration path active until done is closed or
// limit has passed, so that processes enter control groups without waiting for an RCU
// grace period.
//
// A write to cgroup.procs takes a lock of all processes for writing
// (cgroup_threadgroup_rwsem, kernel/cgroup/cgroup.c). The lock favours readers. The
// first writer after an idle period waits for an RCU grace period (rcu_sync_enter,
// kernel/rcu/sync.c), measured at 4 to 15 ms; the writers after it do not wait.
// Meanwhile forks and exits take a slower shared lock. ReadyAttach is that first
// writer ahead of need: it writes this process into the group that it is already in,
// which moves nothing. On a file system mounted with favordynmods no writer waits,
// and ReadyAttach has no effect.
//
// An error means that this process may not write, for example in a container with
// read-only control groups. Then writers wait as usual. Any goroutine may call it.
func ReadyAttach(done <-chan struct{}, limit time.Duration) error {
	mounts, err := Find(proc.Host)
	if err != nil {
		return err
	}
	late := time.NewTimer(limit)
	defer late.Stop()
	again := time.NewTicker(attachAgain)
	defer again.Stop()
	for {
		if err := mounts.stay(); err != nil {
			return fmt.Errorf("keep the kernel's cgroup migration path active: %w", err)
		}
		select {
		case <-again.C:
		case <-done:
			return nil
		case <-late.C:
			return nil
		}
	}
}

// stay writes this process into one of its own groups. It reads the groups each time,
// because the process may have been moved.
func (m Mounts) stay() error {
	groups, err := m.Of(proc.Host, os.Getpid())
	if err != nil {
		return err
	}
	if len(groups) == 0 {
		return os.ErrNotExist
	}
	return kfile.Write(groups[len(groups)-1].Dir()+"/cgroup.procs", "0") // 0 is the writing process
}
