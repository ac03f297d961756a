package pool

import (
	"cmp"
	"time"
)

// IdleTime is how long no container may have started before the node counts as idle,
// unless Idle.Least is set.
const IdleTime = 100 * time.Millisecond

// Idle detects when a node starts no container, so that a pool creates nothing during a
// boot. One goroutine uses it.
type Idle struct {
	Busy  func() bool   // reports whether a container is starting; nil means never
	Least time.Duration // 0 means IdleTime
	since time.Time     // when the idle time began; zero while a container starts
}

// Now reports whether the node is idle, and has been idle at every call for Least.
func (i *Idle) Now() bool {
	if i.Busy != nil && i.Busy() {
		i.since = time.Time{}
		return false
	}
	if i.since.IsZero() {
		i.since = time.Now()
	}
	return time.Since(i.since) >= cmp.Or(i.Least, IdleTime)
}
