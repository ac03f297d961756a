package job

import (
	"context"
	"log/slog"
	"time"

	"holdfast/internal/hosts/spinup"
)

// recordLimit bounds the time for saving one batch of records, because measuring
// must not delay a job.
const recordLimit = 15 * time.Second

// recording passes records on while containers start, and no container waits for
// it. Records that arrive during a save are saved together.
type recording struct {
	to      Recorder // nil: not recorded
	log     *slog.Logger
	records chan spinup.Record
	ended   chan struct{}
}

// record starts a recording of at most count records to r, which may be nil.
func record(ctx context.Context, r Recorder, count int, log *slog.Logger) *recording {
	c := &recording{to: r, log: log, records: make(chan spinup.Record, count), ended: make(chan struct{})}
	ctx = context.WithoutCancel(ctx) // stopped jobs are recorded too
	go func() {
		defer close(c.ended)
		for s := range c.records {
			batch := []spinup.Record{s}
			for len(c.records) > 0 {
				batch = append(batch, <-c.records)
			}
			c.save(ctx, batch)
		}
	}()
	return c
}

// add takes a record. Any goroutine may call it until end is called.
func (c *recording) add(r spinup.Record) {
	if c.to != nil {
		c.records <- r
	}
}

// end returns when all records have been passed on.
func (c *recording) end() {
	close(c.records)
	<-c.ended
}

func (c *recording) save(ctx context.Context, batch []spinup.Record) {
	ctx, cancel := context.WithTimeout(ctx, recordLimit)
	defer cancel()
	if err := c.to.Record(ctx, batch...); err != nil {
		c.log.Warn("recording spin-ups failed", "count", len(batch), "error", err)
	}
}
