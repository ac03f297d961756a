package watch

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"holdfast"
)

// Bounds of those who follow the events.
const (
	maxSubscribers = 32
	streamBuffer   = 64
)

// subscriber is one of them. One that does not read is given up.
type subscriber struct {
	mu     sync.Mutex
	ch     chan Event
	closed bool
}

func (s *subscriber) send(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	select {
	case s.ch <- e:
	default:
		s.closed = true
		close(s.ch)
	}
}

func (s *subscriber) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		close(s.ch)
	}
}

// Events yields what happens to findings from now on, until ctx is done, the watch
// ends, or the reader is too slow: then the channel is closed. holdfast.ErrBusy.
func (w *Watch) Events(ctx context.Context) (<-chan Event, error) {
	s := &subscriber{ch: make(chan Event, streamBuffer)}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.subs) >= maxSubscribers {
		return nil, fmt.Errorf("%d follow the doctor's events: %w", len(w.subs), holdfast.ErrBusy)
	}
	w.subs = append(w.subs, s)
	context.AfterFunc(ctx, func() {
		w.mu.Lock()
		w.subs = slices.DeleteFunc(w.subs, func(x *subscriber) bool { return x == s })
		w.mu.Unlock()
		s.close()
	})
	return s.ch, nil
}

// unsubscribe ends all streams.
func (w *Watch) unsubscribe() {
	w.mu.Lock()
	subs := w.subs
	w.subs = nil
	w.mu.Unlock()
	for _, s := range subs {
		s.close()
	}
}
