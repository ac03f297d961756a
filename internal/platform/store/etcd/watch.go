package etcd

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast"
	"holdfast/internal/platform/store"
)

// The back-off of a watch while etcd does not answer.
const (
	watchBackoffMin = 50 * time.Millisecond
	watchBackoffMax = time.Second
)

// Watch yields the changes of session records. While etcd does not answer it yields
// nothing, and afterwards the changes that the reader missed.
func (s *Store) Watch(ctx context.Context, after holdfast.Revision) <-chan store.Event {
	out := make(chan store.Event)
	w := &watcher{store: s, out: out, at: after}
	go func() {
		defer close(out)
		w.run(ctx)
	}()
	return out
}

// watcher is one reader's watch, used by its own goroutine only.
type watcher struct {
	store *Store
	out   chan<- store.Event
	at    holdfast.Revision // the reader has everything up to here
	view  store.View        // what the reader knows
	gone  bool              // the history after at is gone
}

func (w *watcher) run(ctx context.Context) {
	backoff := watchBackoffMin
	for ctx.Err() == nil {
		before := w.at
		err := w.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if w.at > before || errors.Is(err, rpctypes.ErrCompacted) {
			backoff = watchBackoffMin
		}
		w.store.log.Debug("watch of sessions begins again", "after", w.at, "error", err)
		select {
		case <-time.After(backoff):
		case <-ctx.Done():
		}
		backoff = min(2*backoff, watchBackoffMax)
	}
}

// once yields events from the reader's position on, until an error.
func (w *watcher) once(ctx context.Context) error {
	if w.view == nil {
		if err := w.begin(ctx); err != nil {
			return err
		}
	}
	for {
		if w.gone {
			if err := w.catchUp(ctx); err != nil {
				return err
			}
		}
		err := w.follow(ctx)
		if !errors.Is(err, rpctypes.ErrCompacted) {
			return err
		}
		w.gone = true
	}
}

// begin restores the reader's view: from the list that it has, or else from the
// records at its revision.
func (w *watcher) begin(ctx context.Context) error {
	if view, ok := w.store.lists.View(w.at); ok || w.at <= 0 {
		w.view = view
		return nil
	}
	owners, _, err := w.store.listAt(ctx, w.at)
	switch {
	case errors.Is(err, rpctypes.ErrCompacted):
		w.gone = true
	case err != nil:
		return err
	}
	w.view = store.ViewOf(owners)
	return nil
}

// catchUp lists and yields the difference.
func (w *watcher) catchUp(ctx context.Context) error {
	owners, at, err := w.store.listAt(ctx, 0)
	if err != nil {
		return err
	}
	for _, e := range w.view.CatchUp(owners, at) {
		if !w.yield(ctx, e) {
			return ctx.Err()
		}
	}
	w.at, w.gone = at, false
	return nil
}

// follow yields etcd's events until the watch breaks. ErrCompacted means that the
// history that it needs is gone.
func (w *watcher) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// WithRequireLeader: a member without a leader ends the watch instead of staying
	// silent. Progress notifications advance the position in idle times, so that a
	// compaction rarely overtakes the watch. Fragments: the records of one lease may
	// not fit in one message.
	responses := w.store.client.Watch(clientv3.WithRequireLeader(ctx), sessionPrefix,
		clientv3.WithPrefix(), clientv3.WithRev(int64(w.at)+1),
		clientv3.WithProgressNotify(), clientv3.WithFragment())
	for {
		select {
		case r, ok := <-responses:
			if !ok {
				return errors.New("etcd ended the watch")
			}
			if err := w.respond(ctx, r); err != nil {
				return err
			}
		case <-w.store.dead.Done():
			return context.Cause(w.store.dead)
		}
	}
}

func (w *watcher) respond(ctx context.Context, r clientv3.WatchResponse) error {
	if err := r.Err(); err != nil {
		return err
	}
	for _, e := range r.Events {
		event, err := eventOf(e)
		if err != nil {
			w.store.unreadable(err)
			continue
		}
		if !w.yield(ctx, event) {
			return ctx.Err()
		}
	}
	// While etcd replays history in parts, the header already has the present
	// revision. With events, only the last event shows the position.
	if n := len(r.Events); n > 0 {
		w.at = holdfast.Revision(r.Events[n-1].Kv.ModRevision)
	} else if r.IsProgressNotify() {
		w.at = max(w.at, holdfast.Revision(r.Header.GetRevision()))
	}
	return nil
}

// yield sends the reader an event. It returns false if ctx is done first.
func (w *watcher) yield(ctx context.Context, e store.Event) bool {
	select {
	case w.out <- e:
		w.view.Apply(e)
		return true
	case <-ctx.Done():
		return false
	}
}

func eventOf(e *clientv3.Event) (store.Event, error) {
	if e.Type == clientv3.EventTypeDelete {
		return store.Event{Key: sessionKey(e.Kv), Deleted: true, Revision: holdfast.Revision(e.Kv.ModRevision)}, nil
	}
	o, err := decodeOwner(e.Kv)
	if err != nil {
		return store.Event{}, err
	}
	return store.Event{Key: o.Key, Owner: o, Revision: o.Revision}, nil
}
