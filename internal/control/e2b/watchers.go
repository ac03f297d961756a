package e2b

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/control/e2b/envd"
	"holdfast/internal/platform/tasks"
)

// watchers are the watches whose callers ask for the events.
type watchers struct {
	mu  sync.Mutex
	all map[string]*watcher
}

// watcher keeps the events of one watch until its caller asks.
type watcher struct {
	id, sandbox string
	ctx         context.Context
	cancel      context.CancelFunc
	done        chan struct{}

	mu     sync.Mutex
	events []*envd.FilesystemEvent
	over   bool
	err    error
	asked  time.Time
}

func newWatchers() *watchers { return &watchers{all: map[string]*watcher{}} }

// add returns a watcher that is not running yet.
func (w *watchers) add(s sandbox) (*watcher, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.all) >= maxWatchers {
		return nil, fmt.Errorf("%d directories are watched on this node: %w", maxWatchers, holdfast.ErrBusy)
	}
	one := &watcher{id: newID(), sandbox: s.ID, done: make(chan struct{}), asked: time.Now()}
	one.ctx, one.cancel = context.WithCancel(context.Background())
	w.all[one.id] = one
	return one, nil
}

// find returns a watcher of a sandbox.
func (w *watchers) find(s sandbox, id string) (*watcher, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if one := w.all[id]; one != nil && one.sandbox == s.ID {
		return one, nil
	}
	return nil, refuse(404, "there is no watcher of this id; one that is not asked for %v is removed", watcherLimit)
}

// remove ends a watcher, and returns when it has ended.
func (w *watchers) remove(one *watcher) {
	w.mu.Lock()
	delete(w.all, one.id)
	w.mu.Unlock()
	one.cancel()
	<-one.done
}

// expire removes the watchers whose callers have not asked for a while.
func (w *watchers) expire() {
	w.mu.Lock()
	var old []*watcher
	for _, one := range w.all {
		if one.idle() > watcherLimit {
			old = append(old, one)
		}
	}
	w.mu.Unlock()
	for _, one := range old {
		w.remove(one)
	}
}

// close removes all watchers.
func (w *watchers) close() {
	w.mu.Lock()
	all := w.all
	w.all = map[string]*watcher{}
	w.mu.Unlock()
	for _, one := range all {
		one.cancel()
		<-one.done
	}
}

func (o *watcher) idle() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return time.Since(o.asked)
}

var errTooMany = errors.New("more events came than are kept; watch the directory again")

// put keeps an event.
func (o *watcher) put(e *envd.FilesystemEvent) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.events) >= maxEvents {
		return errTooMany
	}
	o.events = append(o.events, e)
	return nil
}

func (o *watcher) end(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over, o.err = true, err
}

// failure is why a watch has ended.
func (o *watcher) failure() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// take returns the kept events. A change that the caller has just made is among them: the
// kernel has reported it, but it may still be on its way through the agent, so take waits
// until no event has come for a moment. After the end of the watch and its last events,
// the error is that of the watch.
func (o *watcher) take(ctx context.Context) ([]*envd.FilesystemEvent, error) {
	for n := -1; n != o.count(); {
		n = o.count()
		if tasks.Sleep(ctx, settle) != nil {
			return nil, ctx.Err()
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	events := o.events
	o.events, o.asked = nil, time.Now()
	if len(events) == 0 && o.over {
		return nil, o.err
	}
	return events, nil
}

func (o *watcher) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.events)
}
