package store

import (
	"cmp"
	"slices"
	"sync"

	"holdfast"
)

// View is what one reader of Watch has been told: the revision of each record
// that it knows. An implementation keeps one per watch, so that it can bring
// the reader up to date from a list when the history is gone. It is not safe
// for concurrent use.
type View map[holdfast.SessionKey]holdfast.Revision

// Apply notes an event that the reader gets.
func (v View) Apply(e Event) {
	if e.Deleted {
		delete(v, e.Key)
	} else {
		v[e.Key] = e.Owner.Revision
	}
}

// CatchUp returns the events that lead from the view to the list, which is
// true at the revision: puts in the order of their revisions, then deletes.
// The view itself changes by Apply only.
func (v View) CatchUp(owners []holdfast.Owner, at holdfast.Revision) []Event {
	var events []Event
	listed := make(map[holdfast.SessionKey]bool, len(owners))
	for _, o := range owners {
		listed[o.Key] = true
		if v[o.Key] != o.Revision {
			events = append(events, Event{Key: o.Key, Owner: o, Revision: o.Revision})
		}
	}
	slices.SortFunc(events, func(a, b Event) int { return cmp.Compare(a.Revision, b.Revision) })
	var gone []Event
	for key := range v {
		if !listed[key] {
			gone = append(gone, Event{Key: key, Deleted: true, Revision: at})
		}
	}
	slices.SortFunc(gone, func(a, b Event) int { return cmp.Compare(a.Key, b.Key) })
	return append(events, gone...)
}

// How many lists a Lists remembers, and how many records in all of them, but for
// the newest list, which it always does. A reader watches right after it has
// listed, so a few are enough; sixteen of 100,000 records would be 100 MB.
const (
	maxLists  = 16
	maxListed = 250_000
)

// Lists remembers what the last few calls of List returned, as the views that
// their readers have. With it a Watch whose starting point has left the store's
// history still knows which records its reader has to forget. The zero Lists is
// empty; its methods may be called from any goroutine.
type Lists struct {
	mu   sync.Mutex
	last []list // oldest first
}

type list struct {
	at   holdfast.Revision
	view View
}

// Add remembers a list and the revision that it is true at.
func (l *Lists) Add(owners []holdfast.Owner, at holdfast.Revision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.ContainsFunc(l.last, func(x list) bool { return x.at == at }) {
		return
	}
	view := make(View, len(owners))
	for _, o := range owners {
		view[o.Key] = o.Revision
	}
	l.last = append(l.last, list{at, view})
	for len(l.last) > 1 && (len(l.last) > maxLists || l.listed() > maxListed) {
		l.last = slices.Delete(l.last, 0, 1)
	}
}

// listed is how many records the lists have. l.mu is held.
func (l *Lists) listed() (n int) {
	for _, x := range l.last {
		n += len(x.view)
	}
	return n
}

// View returns a view of its own of the list at the revision, and false where
// that list is not remembered.
func (l *Lists) View(at holdfast.Revision) (View, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range l.last {
		if x.at == at {
			view := make(View, len(x.view))
			for key, rev := range x.view {
				view[key] = rev
			}
			return view, true
		}
	}
	return View{}, false
}
