package etcd

import (
	"sync"

	"holdfast"
)

// written has the session records as a Store has written them, until it releases them or takes
// another lease. Only the revision says whether one is still the present record.
type written struct {
	mu  sync.Mutex
	all map[holdfast.SessionKey]record
}

func (w *written) get(key holdfast.SessionKey) (r record, known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r, known = w.all[key]
	return r, known
}

func (w *written) put(r record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = make(map[holdfast.SessionKey]record)
	}
	o := holdfast.Owner{Key: r.Key, Node: r.Node, Epoch: r.Epoch, Revision: r.Revision, State: r.State} // all that Advance needs
	w.all[r.Key] = record{o, r.Base}
}

// drop removes the records of sessions.
func (w *written) drop(owners ...holdfast.Owner) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range owners {
		delete(w.all, o.Key)
	}
}

// reset removes all records.
func (w *written) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = nil
}
