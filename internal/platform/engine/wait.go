package engine

import (
	"context"
	"time"

	"holdfast/internal/platform/tasks"
)

// The first and the longest wait before a new subscription after a break.
const (
	firstRetry = 20 * time.Millisecond
	lastRetry  = 2 * time.Second
)

// Resubscribe calls subscribe again after each break, with a growing pause, until ctx
// is done or the reader stops. subscribe reports whether there was a connection, and
// whether the reader goes on.
func Resubscribe(ctx context.Context, subscribe func() (subscribed, more bool)) {
	retry := firstRetry
	for ctx.Err() == nil {
		subscribed, more := subscribe()
		if !more {
			return
		}
		if subscribed {
			retry = firstRetry
		}
		_ = tasks.Sleep(ctx, retry)
		retry = min(2*retry, lastRetry)
	}
}

// FirstSize waits for the terminal's first size. It is zero for a command without a
// terminal.
func (x Exec) FirstSize(ctx context.Context) (Size, error) {
	if !x.TTY || x.Resize == nil {
		return Size{}, nil
	}
	select {
	case s := <-x.Resize:
		return s, nil
	case <-ctx.Done():
		return Size{}, ctx.Err()
	}
}

// EachSize calls set with the first size of the terminal and with each later one,
// until ctx is done or Resize is closed. It leaves out sizes without rows or columns.
func (x Exec) EachSize(ctx context.Context, size Size, set func(Size)) {
	for open := true; open; {
		if size.Rows > 0 && size.Cols > 0 {
			set(size)
			if x.Resized != nil {
				x.Resized(size)
			}
		}
		select {
		case size, open = <-x.Resize:
		case <-ctx.Done():
			return
		}
	}
}
