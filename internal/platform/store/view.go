package store

import (
	"maps"
	"slices"
	"sort"
	"sync"

	"holdfast"
)

// View is the state of one reader of Watch: the revision of each record that it
// knows. An implementation keeps one per watch, so that it can bring the reader up to
// date from a list when the history is gone. It is not safe for concurrent use.
type View map[holdfast.SessionKey]holdfast.Revision

// ViewOf returns the view of a reader that has the records.
func ViewOf(owners []holdfast.Owner) View {
	view := make(View, len(owners))
	for _, o := range owners {
		view[o.Key] = o.Revision
	}
	return view
}

// Apply records an event that the reader gets.
func (v View) Apply(e Event) {
	if e.Deleted {
		delete(v, e.Key)
	} else {
		v[e.Key] = e.Owner.Revision
	}
}

// CatchUp returns the events that lead from the view to the list of revision at: puts
// in the order of their revisions, then deletes. Only Apply changes the view.
func (v View) CatchUp(owners []holdfast.Owner, at holdfast.Revision) []Event {
	var events []Event
	listed := make(map[holdfast.SessionKey]bool, len(owners))
	for _, o := range owners {
		listed[o.Key] = true
		if v[o.Key] != o.Revision {
			events = append(events, Event{Key: o.Key, Owner: o, Revision: o.Revision})
		}
	}
	sort.Slice(events, func(i, j int) bool { return events[i].Revision < events[j].Revision })
	var gone []Event
	for key := range v {
		if !listed[key] {
			gone = append(gone, Event{Key: key, Deleted: true, Revision: at})
		}
	}
	sort.Slice(gone, func(i, j int) bool { return gone[i].Key < gone[j].Key })
	return append(events, gone...)
}

// Rewritten reports whether a list has a record that is not newer than the revision
// after, and that the view, which has everything up to it, does not have. Only a
// restored store has such records.
func (v View) Rewritten(owners []holdfast.Owner, after holdfast.Revision) bool {
	return slices.ContainsFunc(owners, func(o holdfast.Owner) bool { return o.Revision <= after && v[o.Key] != o.Revision })
}

// The number of lists that a Lists remembers, and the number of records in them
// without the newest list, which it always keeps. A reader watches right after it has
// listed, so a few are enough; sixteen lists of 100,000 records would be 100 MB.
const (
	maxLists  = 16
	maxListed = 250_000
)

// Lists remembers the results of the last few calls of List, as the views of their
// readers. If the start of a Watch has left the store's history, the view shows which
// records its reader has to forget. The zero Lists is empty; its methods may be
// called from any goroutine.
type Lists struct {
	mu   sync.Mutex
	last []list // oldest first
}

type list struct {
	at   holdfast.Revision
	view View
}

// Forget drops all lists.
func (l *Lists) Forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = nil
}

// Add remembers a list and its revision.
func (l *Lists) Add(owners []holdfast.Owner, at holdfast.Revision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.ContainsFunc(l.last, func(x list) bool { return x.at == at }) {
		return
	}
	l.last = append(l.last, list{at, ViewOf(owners)})
	for len(l.last) > 1 && (len(l.last) > maxLists || l.listed() > maxListed) {
		l.last = slices.Delete(l.last, 0, 1)
	}
}

// listed is the number of records in the lists. l.mu is held.
func (l *Lists) listed() (n int) {
	for _, x := range l.last {
		n += len(x.view)
	}
	return n
}

// View returns a copy of the view of the list at the revision, or false if that list
// is not remembered.
func (l *Lists) View(at holdfast.Revision) (View, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range l.last {
		if x.at == at {
			return maps.Clone(x.view), true
		}
	}
	return View{}, false
}
