package watch

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"holdfast"
)

// Bounds of event streams.
const (
	maxSubscribers = 32
	streamBuffer   = 64
)

// subscriber is one stream. It is closed if its reader is too slow.
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

// Events streams the events of findings from now on. The channel is closed when ctx is
// done, when the watch ends, or when the reader is too slow. It returns holdfast.ErrBusy
// if there are too many streams.
func (w *Watch) Events(ctx context.Context) (<-chan Event, error) {
	s := &subscriber{ch: make(chan Event, streamBuffer)}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.subs) >= maxSubscribers {
		return nil, fmt.Errorf("there are %d streams of the doctor's events: %w", len(w.subs), holdfast.ErrBusy)
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
