package watch

import (
	"context"
	"fmt"

	"holdfast"
)

// Bounds of event streams.
const (
	maxStreams   = 32
	streamBuffer = 64
)

// Events streams the events of findings from now on. The channel is closed when ctx is
// done, when the watch ends, or when the reader is too slow. It returns holdfast.ErrBusy
// if there are too many streams.
func (w *Watch) Events(ctx context.Context) (<-chan Event, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.streams) >= maxStreams {
		return nil, fmt.Errorf("there are %d streams of the doctor's events: %w", len(w.streams), holdfast.ErrBusy)
	}
	ch := make(chan Event, streamBuffer)
	w.streams[ch] = true
	context.AfterFunc(ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.endStream(ch)
	})
	return ch, nil
}

// send sends an event to all streams. It ends those with a reader that is too slow.
func (w *Watch) send(e Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for ch := range w.streams {
		select {
		case ch <- e:
		default:
			w.endStream(ch)
		}
	}
}

// endStream closes a stream unless it is closed. The caller holds w.mu.
func (w *Watch) endStream(ch chan Event) {
	if w.streams[ch] {
		delete(w.streams, ch)
		close(ch)
	}
}

func (w *Watch) endStreams() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for ch := range w.streams {
		w.endStream(ch)
	}
}
