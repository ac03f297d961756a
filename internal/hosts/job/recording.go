package job

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"holdfast/internal/hosts/spinup"
)

// recordLimit bounds the time for saving one batch of records, because measuring
// must not delay a job.
const recordLimit = 15 * time.Second

// recording passes records on while containers start, and no container waits for
// it. Records that arrive during a save are saved together.
type recording struct {
	to  Recorder
	log *slog.Logger

	mu      sync.Mutex
	waiting []spinup.Record
	more    chan struct{} // buffered, capacity 1
	ended   chan struct{}
}

// record starts a recording to r, which may be nil.
func record(ctx context.Context, r Recorder, log *slog.Logger) *recording {
	c := &recording{to: r, log: log, more: make(chan struct{}, 1), ended: make(chan struct{})}
	ctx = context.WithoutCancel(ctx) // stopped jobs are recorded too
	go func() {
		defer close(c.ended)
		for range c.more {
			c.hand(ctx)
		}
		c.hand(ctx)
	}()
	return c
}

// add takes a record. Any goroutine may call it until end is called.
func (c *recording) add(r spinup.Record) {
	if c.to == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, r)
	select {
	case c.more <- struct{}{}:
	default: // a wakeup is already pending
	}
}

// end returns when all records have been passed on.
func (c *recording) end() {
	close(c.more)
	<-c.ended
}

func (c *recording) hand(ctx context.Context) {
	c.mu.Lock()
	batch := c.waiting
	c.waiting = nil
	c.mu.Unlock()
	if len(batch) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, recordLimit)
	defer cancel()
	if err := c.to.Record(ctx, batch...); err != nil {
		c.log.Warn("recording spin-ups failed", "count", len(batch), "error", err)
	}
}
