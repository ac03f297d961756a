package probe

import (
	"context"
	"errors"
	"io"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/tracepoint"
)

// moment returns the Open of a probe whose values need no previous reading.
func moment(read func(context.Context, Host) ([]fact.Fact, error)) Open {
	return func(_ context.Context, h Host, _ time.Time) (Series, error) {
		return current(func(ctx context.Context) ([]fact.Fact, error) { return read(ctx, h) }), nil
	}
}

// current is a Series of values that need no previous reading.
type current func(context.Context) ([]fact.Fact, error)

func (r current) Read(ctx context.Context, _ time.Time) ([]fact.Fact, error) { return r(ctx) }
func (r current) Close() error                                               { return nil }

// counting is a Series of counters. Each reading is compared with the one before.
type counting[T any] struct {
	host   Host
	at     time.Time
	before T
	read   func(context.Context, Host) (T, error)
	facts  compare[T]
	closer io.Closer // nil: nothing is open
}

// compare returns the facts of two readings.
type compare[T any] func(h Host, before, after T, over time.Duration) ([]fact.Fact, error)

// counted returns the Open of a probe of counters in files.
func counted[T any](read func(context.Context, Host) (T, error), facts compare[T]) Open {
	return func(ctx context.Context, h Host, now time.Time) (Series, error) {
		before, err := read(ctx, h)
		if err != nil {
			return nil, err
		}
		return &counting[T]{host: h, at: now, before: before, read: read, facts: facts}, nil
	}
}

// tallied returns the Open of a probe of events that the kernel counts by place.
func tallied(attach func(Host) (*tracepoint.Tally, error), facts func(h Host, places []tracepoint.Place, over time.Duration) ([]fact.Fact, error)) Open {
	return func(_ context.Context, h Host, now time.Time) (Series, error) {
		t, err := attach(h)
		if err != nil {
			return nil, traceError(err)
		}
		return &counting[[]tracepoint.Place]{
			host: h, at: now, closer: t,
			read: func(context.Context, Host) ([]tracepoint.Place, error) { return t.Take() },
			facts: func(h Host, _, places []tracepoint.Place, over time.Duration) ([]fact.Fact, error) {
				return facts(h, places, over)
			},
		}, nil
	}
}

// timed returns the Open of a probe of durations that the kernel measures.
func timed(attach func() (*tracepoint.Latency, error), facts compare[tracepoint.Histogram]) Open {
	return func(_ context.Context, h Host, now time.Time) (Series, error) {
		l, err := attach()
		if err != nil {
			return nil, traceError(err)
		}
		read := func(context.Context, Host) (tracepoint.Histogram, error) { return l.Read() }
		return &counting[tracepoint.Histogram]{host: h, at: now, closer: l, read: read, facts: facts}, nil
	}
}

func (c *counting[T]) Read(ctx context.Context, now time.Time) ([]fact.Fact, error) {
	over := now.Sub(c.at)
	if over <= 0 {
		return nil, nil
	}
	after, err := c.read(ctx, c.host)
	if err != nil {
		return nil, err
	}
	fs, err := c.facts(c.host, c.before, after, over)
	c.before, c.at = after, now
	return fs, err
}

func (c *counting[T]) Close() error {
	if c.closer == nil {
		return nil
	}
	return c.closer.Close()
}

// both is a Series of the facts of two others.
type both [2]Series

func (b both) Read(ctx context.Context, now time.Time) ([]fact.Fact, error) {
	one, err := b[0].Read(ctx, now)
	two, err2 := b[1].Read(ctx, now)
	return append(one, two...), errors.Join(err, err2)
}

// opened returns the Open of a probe that observes two things.
func opened(one, two Open) Open {
	return func(ctx context.Context, h Host, now time.Time) (Series, error) {
		a, err := one(ctx, h, now)
		if err != nil {
			return nil, err
		}
		b, err := two(ctx, h, now)
		if err != nil {
			return nil, errors.Join(err, a.Close())
		}
		return both{a, b}, nil
	}
}

func (b both) Close() error { return errors.Join(b[0].Close(), b[1].Close()) }
