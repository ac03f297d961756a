package kill

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"sync"
	"time"

	"holdfast/internal/platform/linux/pidfd"
)

// Watcher reports the death of containers' inits, for any number of containers with
// one goroutine and no thread.
type Watcher struct {
	set *pidfd.Set

	mu   sync.Mutex
	next int32
	byID map[int32]watched
}

type watched struct {
	target *Target
	dead   func()
}

// NewWatcher makes a watcher, which works during Run.
func NewWatcher() (*Watcher, error) {
	set, err := pidfd.NewSet()
	if err != nil {
		return nil, fmt.Errorf("watch containers: %w", err)
	}
	return &Watcher{set: set, byID: make(map[int32]watched)}, nil
}

// Add makes Run call dead once when the target's init is dead, also if it died
// before. dead must not block the goroutine of Run. Add may be called from any
// goroutine, before and during Run. The target has to stay open until the call or
// until Remove. Adding a target again replaces the function.
func (w *Watcher) Add(t *Target, dead func()) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forget(t)
	w.next++
	w.byID[w.next] = watched{t, dead}
	if err := w.set.Add(t.init, w.next); err != nil {
		delete(w.byID, w.next)
		return fmt.Errorf("watch container %s: %w", t, err)
	}
	return nil
}

// Remove removes a target. A call of its function that has begun may still arrive.
func (w *Watcher) Remove(t *Target) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forget(t)
	_ = w.set.Remove(t.init) // closing a descriptor removes it from the set
}

func (w *Watcher) forget(t *Target) {
	maps.DeleteFunc(w.byID, func(_ int32, x watched) bool { return x.target == t })
}

// Run calls the functions until ctx is done, and then returns nil. It can be called
// once.
func (w *Watcher) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, w.set.Close)
	defer stop()
	defer w.set.Close()
	var tags []int32
	for {
		var err error
		tags, err = w.set.Wait(tags[:0], time.Time{})
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, os.ErrClosed):
			return fmt.Errorf("watch containers: Run was called before: %w", err)
		case err != nil:
			return fmt.Errorf("watch containers: %w", err)
		}
		for _, id := range tags {
			if dead := w.take(id); dead != nil {
				dead()
			}
		}
	}
}

func (w *Watcher) take(id int32) func() {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := w.byID[id]
	delete(w.byID, id)
	return x.dead
}
