package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"holdfast/internal/platform/linux/proc"
)

// attachAgain is the time between two moves that keep the kernel ready for others. It
// is ready for a grace period of RCU after the last one, some ms at the least.
const attachAgain = 5 * time.Millisecond

// ReadyAttach has processes enter control groups without the wait that the kernel makes
// each first of them have, until done is closed or limit has passed.
//
// Whoever writes cgroup.procs takes a lock of all processes for writing
// (cgroup_threadgroup_rwsem, kernel/cgroup/cgroup.c). It is made for many readers: the
// first writer after a while waits for a grace period of RCU (rcu_sync_enter,
// kernel/rcu/sync.c), some 4 to 15 ms here, and those after it do not; meanwhile forks
// and exits take a lock that others share. This process writes itself into the group that
// it is in already, which moves nothing, and is that first writer ahead of need. Where
// the file system is mounted with favordynmods nobody ever waits, and this is of no use.
//
// An error says that this process may not, as in a container with control groups that
// are read-only: then others wait as ever. Any goroutine may call it.
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
			return fmt.Errorf("ready the kernel for processes that enter control groups: %w", err)
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

// stay has this process enter one of its own groups. Which those are is read each time:
// somebody may move it.
func (m Mounts) stay() error {
	groups, err := m.Of(proc.Host, os.Getpid())
	if err != nil {
		return err
	}
	if len(groups) == 0 {
		return os.ErrNotExist
	}
	f, err := os.OpenFile(filepath.Join(groups[len(groups)-1].Dir(), "cgroup.procs"), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString("0") // who writes
	return errors.Join(err, f.Close())
}
