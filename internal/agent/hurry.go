package agent

import (
	"context"
	"errors"
	"sync"
	"time"
)

// hurry has a drain under way make room for one that has less time: a person's,
// with a budget of many minutes for snapshots, for that of a notice.
type hurry struct {
	mu    sync.Mutex
	until time.Time // when the drain under way has to be over; zero where there is none
	end   context.CancelCauseFunc
}

// errHurry ends a drain that makes room.
var errHurry = errors.New("another drain came that has less time")

// press says that another drain waits that has to be over by a moment. The one
// under way keeps half of that time, where it has more. Call the returned when the
// turn has come.
func (h *hurry) press(until time.Time) (arrived func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.until.After(until) {
		return func() {}
	}
	end := h.end
	timer := time.AfterFunc(time.Until(until)/2, func() { end(errHurry) })
	return func() { timer.Stop() }
}

// begin is called when a drain begins, and what it returns when it has ended.
func (h *hurry) begin(ctx context.Context, until time.Time) (context.Context, func()) {
	ctx, end := context.WithCancelCause(ctx)
	h.set(until, end)
	return ctx, func() {
		h.set(time.Time{}, nil)
		end(nil)
	}
}

func (h *hurry) set(until time.Time, end context.CancelCauseFunc) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.until, h.end = until, end
}
