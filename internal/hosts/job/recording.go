package job

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"holdfast/internal/hosts/spinup"
)

// recordLimit bounds the keeping of what has come together: measuring must not
// hold a job up for long.
const recordLimit = 15 * time.Second

// recording hands records on while containers come up, and no container waits for
// it. Those that come while others are being kept go together.
type recording struct {
	to  Recorder
	log *slog.Logger

	mu      sync.Mutex
	waiting []spinup.Record
	more    chan struct{} // has room for one
	ended   chan struct{}
}

// record begins to hand records on to r, which may be nil.
func record(ctx context.Context, r Recorder, log *slog.Logger) *recording {
	c := &recording{to: r, log: log, more: make(chan struct{}, 1), ended: make(chan struct{})}
	ctx = context.WithoutCancel(ctx) // also what was stopped is recorded
	go func() {
		defer close(c.ended)
		for range c.more {
			c.hand(ctx)
		}
		c.hand(ctx)
	}()
	return c
}

// add takes a record. It may be called from any goroutine until end is.
func (c *recording) add(r spinup.Record) {
	if c.to == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, r)
	select {
	case c.more <- struct{}{}:
	default: // it is told already
	}
}

// end returns when all have been handed on.
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
		c.log.Warn("spin-ups are not recorded", "count", len(batch), "error", err)
	}
}
