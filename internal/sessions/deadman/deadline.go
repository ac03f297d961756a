package deadman

import (
	"sync"

	"holdfast/internal/platform/linux/boottime"
)

// latestDeadline is the newest deadline. Any goroutine may set it; set never waits for
// a deadman.
type latestDeadline struct {
	mu       sync.Mutex // never held across I/O
	deadline boottime.Instant
	missed   bool // a deadline passed before the next one was set
}

// set sets another deadline; the zero Instant is none.
func (l *latestDeadline) set(deadline boottime.Instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.missed = l.missed || l.deadline != 0 && l.deadline.Until() <= 0
	l.deadline = deadline
}

// begin sets the deadline that an earlier agent left, unless a deadline is set.
func (l *latestDeadline) begin(deadline boottime.Instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.deadline == 0 {
		l.deadline = deadline
	}
}

// take returns the deadline, and whether one had passed since the last take
// before another was set.
func (l *latestDeadline) take() (deadline boottime.Instant, missed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	missed, l.missed = l.missed, false
	return l.deadline, missed
}
