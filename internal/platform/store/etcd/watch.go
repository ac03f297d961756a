package etcd

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast"
	"holdfast/internal/platform/store"
	"holdfast/internal/platform/tasks"
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
	w := &watcher{store: s, out: out, at: after, self: s.past.Begin()}
	go func() {
		defer close(out)
		defer s.past.End(w.self)
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
	blind bool              // the view is not what the reader had at the revision at
	self  *store.Reader
	turn  <-chan struct{} // closed when the reader needs all records
}

func (w *watcher) run(ctx context.Context) {
	backoff := watchBackoffMin
	for ctx.Err() == nil {
		before := w.at
		err := w.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if w.at > before || errors.Is(err, rpctypes.ErrCompacted) || errors.Is(err, store.ErrRestored) {
			backoff = watchBackoffMin
		}
		w.store.log.Debug("watch of sessions begins again", "after", w.at, "error", err)
		_ = tasks.Sleep(ctx, backoff)
		backoff = min(2*backoff, watchBackoffMax)
	}
}

// once yields events from the reader's position on, until an error.
func (w *watcher) once(ctx context.Context) error {
	if err := w.restart(ctx); err != nil {
		return err
	}
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

// restart yields all records if etcd was restored.
func (w *watcher) restart(ctx context.Context) error {
	turn, again, changed := w.store.past.Turn(w.self)
	if w.turn = changed; !again {
		return nil
	}
	w.store.lists.Forget()
	owners, at, err := w.store.listAt(ctx, 0)
	if err != nil {
		return err
	}
	select {
	case w.out <- store.Event{Restored: true, Owners: owners, Revision: at}:
	case <-ctx.Done():
		return ctx.Err()
	}
	w.view, w.at, w.gone, w.blind = store.ViewOf(owners), at, false, false
	w.store.past.Listed(w.self, turn)
	return nil
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
		w.gone, w.blind = true, true
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
	if !w.blind && w.view.Rewritten(owners, w.at) {
		w.store.past.Notice()
		w.store.past.Listed(w.self, -1)
		return store.ErrRestored
	}
	for _, e := range w.view.CatchUp(owners, at) {
		if !w.yield(ctx, e) {
			return ctx.Err()
		}
	}
	w.at, w.gone, w.blind = at, false, false
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
		clientv3.WithPrefix(), clientv3.WithRev(w.store.raw(w.at)+1),
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
		case <-w.turn:
			return store.ErrRestored
		}
	}
}

func (w *watcher) respond(ctx context.Context, r clientv3.WatchResponse) error {
	if err := r.Err(); err != nil {
		return err
	}
	for _, e := range r.Events {
		event, err := w.store.eventOf(e)
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
		w.at = w.store.revision(r.Events[n-1].Kv.ModRevision)
	} else if r.IsProgressNotify() {
		w.at = max(w.at, w.store.revision(r.Header.GetRevision()))
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

func (s *Store) eventOf(e *clientv3.Event) (store.Event, error) {
	if e.Type == clientv3.EventTypeDelete {
		return store.Event{Key: sessionKey(e.Kv), Deleted: true, Revision: s.revision(e.Kv.ModRevision)}, nil
	}
	o, err := s.decodeOwner(e.Kv)
	if err != nil {
		return store.Event{}, err
	}
	return store.Event{Key: o.Key, Owner: o, Revision: o.Revision}, nil
}
