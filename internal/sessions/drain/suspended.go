package drain

import (
	"context"
	"fmt"
	"sort"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// suspendedAtOnce is how many images of suspended sessions are moved concurrently.
	suspendedAtOnce = 2
	// Moving an image is expected to take a second, and one more for each slowBytes. A transfer
	// that the agent's end interrupts loses the memory, so it begins only with twice that time.
	slowBytes = 20 << 20
)

// HandOverSuspended implements Node: it moves small images first.
func (h *Host) HandOverSuspended(ctx context.Context) (moved int, notice string) {
	if h.Fleet == nil || h.Suspended == nil {
		return 0, ""
	}
	all, err := h.Suspended(ctx)
	if err != nil {
		return 0, fmt.Sprintf("suspended sessions stay on this node: %v", err)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Bytes < all[j].Bytes })
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(suspendedAtOnce)
	for _, s := range all {
		group.Go(func() error {
			err := errTooLate
			if hasTime(ctx, s.Bytes) {
				_, err = h.Fleet.HandOverSuspended(ctx, s)
			}
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				moved++
			} else if notice == "" {
				notice = err.Error()
			}
			return nil
		})
	}
	_ = group.Wait() // the functions return no error
	if stay := len(all) - moved; stay > 0 {
		return moved, fmt.Sprintf("%d of %d suspended sessions stay on this node: %s", stay, len(all), notice)
	}
	return moved, ""
}

var errTooLate = fmt.Errorf("the time of the drain is over: %w", context.DeadlineExceeded)

// hasTime reports whether an image can be moved before ctx is done.
func hasTime(ctx context.Context, bytes int64) bool {
	until, _ := ctx.Deadline()
	return time.Until(until) >= 2*(time.Second+time.Duration(bytes)*time.Second/slowBytes)
}
