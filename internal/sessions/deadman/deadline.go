package deadman

import (
	"sync"

	"holdfast/internal/platform/linux/boottime"
)

// latestDeadline is the newest deadline. Any goroutine may set it; set never waits for a
// deadman.
type latestDeadline struct {
	mu       sync.Mutex // never held across I/O
	deadline boottime.Instant
	missed   bool // a deadline passed before the next one was set
}

// set sets another deadline; the zero Instant is none.
func (a *latestDeadline) set(deadline boottime.Instant) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.missed = a.missed || a.deadline != 0 && a.deadline.Until() <= 0
	a.deadline = deadline
}

// begin sets the deadline that an earlier agent left, unless a deadline is set.
func (a *latestDeadline) begin(deadline boottime.Instant) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.deadline == 0 {
		a.deadline = deadline
	}
}

// take returns the deadline, and whether one had passed since the last take
// before another was set.
func (a *latestDeadline) take() (deadline boottime.Instant, missed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	missed, a.missed = a.missed, false
	return a.deadline, missed
}
