package embedded

import (
	"context"

	"holdfast"
	"holdfast/internal/platform/store"
)

// Watch yields the changes of session records. It ends also with the store.
func (s *Store) Watch(ctx context.Context, after holdfast.Revision) <-chan store.Event {
	out := make(chan store.Event)
	w := &watch{store: s, out: out, after: after}
	go func() {
		defer close(out)
		w.reader = s.past.Begin()
		defer s.past.End(w.reader)
		w.run(ctx)
	}()
	return out
}

// watch is a reader of the changes.
type watch struct {
	store  *Store
	out    chan<- store.Event
	reader *store.Reader
	after  holdfast.Revision // up to here the reader knows everything
	view   store.View
}

// look is what a watch reads at once.
type look struct {
	events  []store.Event
	at      holdfast.Revision // that the events lead to
	all     bool              // the only event has all records
	turn    int
	turned  <-chan struct{} // closed by a restore of the store
	changed <-chan struct{} // closed by a change
}

// run yields events until ctx is done or the store is closed.
func (w *watch) run(ctx context.Context) {
	for {
		l, err := w.look(ctx)
		if w.store.Err() != nil { // the reader learns it from its calls
			select {
			case <-ctx.Done():
			case <-w.store.ended:
			}
		}
		if err != nil {
			return
		}
		for _, e := range l.events {
			select {
			case w.out <- e:
				if !l.all {
					w.view.Apply(e)
				}
			case <-ctx.Done():
				return
			case <-w.store.ended:
				return
			}
		}
		w.after = l.at
		if l.all {
			w.view = store.ViewOf(l.events[0].Owners)
			w.store.past.Listed(w.reader, l.turn)
			continue
		}
		select {
		case <-l.changed:
		case <-l.turned:
		case <-ctx.Done():
			return
		case <-w.store.ended:
			return
		}
	}
}

// look returns the events after those that the reader has.
func (w *watch) look(ctx context.Context) (look, error) {
	if before := w.store.cfg.Before; before != nil {
		if err := before(ctx, true); err != nil {
			return look{}, err
		}
	}
	return await(ctx, w.store, func(st *state) (look, error) { return w.read(st), nil })
}

func (w *watch) read(st *state) look {
	l := look{at: max(w.after, st.Revision), changed: st.changed}
	var again bool
	l.turn, again, l.turned = w.store.past.Turn(w.reader)
	if again {
		w.store.lists.Forget()
		l.all, l.at = true, st.Revision
		l.events = []store.Event{{Restored: true, Owners: st.owners(), Revision: st.Revision}}
		return l
	}
	if w.view == nil {
		w.view = w.store.viewAt(st, w.after)
	}
	if w.after < st.Gone {
		l.events, l.at = w.view.CatchUp(st.owners(), st.Revision), st.Revision
		return l
	}
	for _, e := range st.history {
		if e.Revision > w.after {
			l.events = append(l.events, e.Event)
		}
	}
	return l
}

// viewAt is the view of a reader that has seen everything up to the revision. It
// comes from a remembered list or, if there is none, from the history.
func (s *Store) viewAt(st *state, after holdfast.Revision) store.View {
	if view, ok := s.lists.View(after); ok {
		return view
	}
	view := store.View{}
	if after < st.Gone {
		return view
	}
	for key, r := range st.sessions {
		if r.Owner.Revision <= after {
			view[key] = r.Owner.Revision
		}
	}
	// A record that has changed since existed at the revision if its first event
	// after it is not a claim.
	seen := map[holdfast.SessionKey]bool{}
	for _, e := range st.history {
		if e.Revision <= after || seen[e.Key] {
			continue
		}
		seen[e.Key] = true
		if e.Deleted || holdfast.Revision(e.Owner.Epoch) <= after {
			view[e.Key] = 0
		}
	}
	return view
}
