package fleet

import (
	"time"

	"holdfast"
)

// Snapshot is what the Directory knows about one key.
type Snapshot struct {
	// Owner is the record if Known is true. Its container, address and times are not
	// kept.
	Owner   holdfast.Owner
	Known   bool
	Suspect bool // the owner refused since the record was learned

	// Last is the removed record and LastAt the time of the removal, for one minute
	// after it. LastAt is zero if no removal is remembered.
	Last   holdfast.Owner
	LastAt time.Time
}

// Owner returns the record of a key, or false without a record.
func (d *Directory) Owner(key holdfast.SessionKey) (holdfast.Owner, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	r, ok := d.records[key]
	return r.owner(key, ok), ok
}

// ownedElsewhere reports whether another node is known to own the session.
func (d *Directory) ownedElsewhere(key holdfast.SessionKey) bool {
	o, ok := d.Owner(key)
	return ok && o.Node != d.self
}

// Len returns the number of records.
func (d *Directory) Len() int {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return len(d.records)
}

func (r record) owner(key holdfast.SessionKey, ok bool) holdfast.Owner {
	if !ok {
		return holdfast.Owner{}
	}
	return holdfast.Owner{
		Key: key, Node: r.node.Value(), Epoch: r.epoch, Revision: r.revision,
		State: r.state.Value(), Template: r.template.Value(),
	}
}

// served returns the record of a session that is ready and not suspect, and the
// channel that closes when that ends.
func (d *Directory) served(key holdfast.SessionKey) (holdfast.Owner, <-chan struct{}, bool) {
	d.mu.RLock()
	r, ok := d.records[key]
	l, has := d.left[key]
	d.mu.RUnlock()
	if !ok || r.suspect || r.state.Value() != holdfast.Ready {
		return holdfast.Owner{}, nil, false
	}
	if has && l.epoch == r.epoch {
		return r.owner(key, true), l.ch, true
	}
	return r.owner(key, true), d.Left(key, r.epoch), true
}

// Left returns the channel that closes when that epoch of the session is gone, leaving
// or replaced. If the directory does not have that epoch, the channel is already
// closed.
func (d *Directory) Left(key holdfast.SessionKey, epoch holdfast.Epoch) <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l, ok := d.left[key]; ok && l.epoch == epoch {
		return l.ch
	}
	ch := make(chan struct{})
	if r, ok := d.records[key]; !ok || r.epoch != epoch || r.state.Value() == holdfast.Leaving {
		close(ch)
		return ch
	}
	d.left[key] = leaving{epoch, ch}
	return ch
}

// ended reports whether an epoch of a session is over, and whether a newer one has
// replaced it. Both are false while the epoch lives, and while the directory has not
// reached it yet.
func (d *Directory) ended(key holdfast.SessionKey, epoch holdfast.Epoch) (over, replaced bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if r, ok := d.records[key]; ok {
		return r.epoch > epoch, r.epoch > epoch
	}
	return d.at >= holdfast.Revision(epoch) || d.tombstones.covers(key, epoch), false
}

// Follower watches one key. Close it after use.
type Follower struct {
	d     *Directory
	key   holdfast.SessionKey
	topic *topic
}

// Follow starts to watch a key.
func (d *Directory) Follow(key holdfast.SessionKey) *Follower {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.topics[key]
	if t == nil {
		t = &topic{changed: make(chan struct{})}
		d.topics[key] = t
	}
	t.followers++
	return &Follower{d, key, t}
}

// Look returns what is known about the key, and a channel that closes at the next
// change.
func (f *Follower) Look() (Snapshot, <-chan struct{}) {
	f.d.mu.RLock()
	defer f.d.mu.RUnlock()
	r, ok := f.d.records[f.key]
	s := Snapshot{Owner: r.owner(f.key, ok), Known: ok, Suspect: r.suspect}
	if t, ok := f.d.tombstones.get(f.key, time.Now()); ok {
		s.Last, s.LastAt = t.owner(f.key, true), t.at
	}
	return s, f.topic.changed
}

// Close ends the watch.
func (f *Follower) Close() {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.topic.followers--; f.topic.followers == 0 {
		delete(f.d.topics, f.key)
	}
}
