package memstore

import (
	"context"
	"slices"

	"holdfast"
	"holdfast/internal/platform/store"
)

// Watch yields the changes of session records. While the store is down it yields
// nothing, and afterwards the changes that the reader missed.
func (s *Store) Watch(ctx context.Context, after holdfast.Revision) <-chan store.Event {
	out := make(chan store.Event)
	go func() {
		defer close(out)
		self := s.past.Begin()
		defer s.past.End(self)
		view := s.viewAt(after)
		for {
			if e, turn, again := s.all(self); again {
				select {
				case out <- e:
					view, after = store.ViewOf(e.Owners), e.Revision
					s.past.Listed(self, turn)
				case <-ctx.Done():
					return
				}
			}
			events, at, changed := s.since(self, after, view)
			for _, e := range events {
				select {
				case out <- e:
					view.Apply(e)
				case <-ctx.Done():
					return
				}
			}
			after = at
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// since returns the events after a revision, the revision that they lead to, and a
// channel that is closed when there may be more.
func (s *Store) since(self *store.Reader, after holdfast.Revision, view store.View) ([]store.Event, holdfast.Revision, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, again, _ := s.past.Turn(self)
	switch {
	case s.fault != none:
		return nil, after, s.changed
	case again:
		closed := make(chan struct{})
		close(closed)
		return nil, after, closed
	case after < s.gone:
		return view.CatchUp(s.owners(), s.revision), s.revision, s.changed
	}
	first := slices.IndexFunc(s.events, func(e store.Event) bool { return e.Revision > after })
	if first < 0 {
		return nil, max(after, s.revision), s.changed
	}
	return slices.Clone(s.events[first:]), s.revision, s.changed
}

// viewAt is the view of a reader that has seen everything up to the revision. It
// comes from the history or, if that no longer has it, from a remembered list.
func (s *Store) viewAt(after holdfast.Revision) store.View {
	if view, ok := s.lists.View(after); ok {
		return view
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	view := store.View{}
	if after < s.gone {
		return view
	}
	for key, r := range s.sessions {
		if r.owner.Revision <= after {
			view[key] = r.owner.Revision
		}
	}
	// A record that has changed since existed at the revision if its first event
	// after it is not a claim.
	seen := map[holdfast.SessionKey]bool{}
	for _, e := range s.events {
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
