package protect

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"

	"holdfast/internal/platform/linux/pidfd"
)

// owners caches which process has which socket open, because a lookup walks
// /proc. Its methods may be called from any goroutine.
type owners struct {
	mu    sync.Mutex
	known map[uint32]pidfd.OpenFile // by inode
	lost  map[uint32]bool           // no process in /proc was found to have these open
}

func newOwners() *owners {
	return &owners{known: make(map[uint32]pidfd.OpenFile), lost: make(map[uint32]bool)}
}

// learn looks up the sockets with these inodes that were not looked up yet, and
// forgets all others.
func (o *owners) learn(inodes []uint32) {
	o.mu.Lock()
	gone := func(i uint32) bool { return !slices.Contains(inodes, i) }
	maps.DeleteFunc(o.known, func(i uint32, _ pidfd.OpenFile) bool { return gone(i) })
	maps.DeleteFunc(o.lost, func(i uint32, _ bool) bool { return gone(i) })
	wanted := slices.DeleteFunc(slices.Clone(inodes), func(i uint32) bool { return o.lost[i] })
	o.mu.Unlock()
	found, err := o.find(nil, wanted)
	if err != nil {
		return // the next hold looks them up again
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, i := range wanted {
		if _, ok := found[i]; !ok {
			o.lost[i] = true
		}
	}
}

// find is pidfd.FindSockets with the cache. Cached entries are verified: a
// process may have closed a socket or ended, and its pid may be reused.
func (o *owners) find(pids []int, inodes []uint32) (map[uint32]pidfd.OpenFile, error) {
	found := make(map[uint32]pidfd.OpenFile, len(inodes))
	var missing []uint32
	o.mu.Lock()
	for _, i := range inodes {
		if f, ok := o.known[i]; ok && has(f, i) {
			found[i] = f
			continue
		}
		delete(o.known, i)
		missing = append(missing, i)
	}
	o.mu.Unlock()
	if len(missing) == 0 {
		return found, nil
	}
	fresh, err := pidfd.FindSockets(pids, missing...)
	if err != nil {
		return nil, err
	}
	maps.Copy(found, fresh)
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.Copy(o.known, fresh)
	return found, nil
}

// has reports whether the process still has the socket open at that descriptor.
func has(f pidfd.OpenFile, inode uint32) bool {
	to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", f.Pid, f.FD))
	return err == nil && to == fmt.Sprintf("socket:[%d]", inode)
}
