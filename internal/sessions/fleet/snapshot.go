package fleet

import (
	"time"

	"holdfast"
)

// Snapshot is what the Directory knows of one key.
type Snapshot struct {
	// Owner is the record where Known is true. Its container, address and
	// times are not kept.
	Owner   holdfast.Owner
	Known   bool
	Suspect bool // the owner refused since it was heard of

	// Last is the record that went away, at LastAt, for a minute after it
	// did. LastAt is zero where nothing is remembered.
	Last   holdfast.Owner
	LastAt time.Time
}

// Owner returns the record of a key, false where it has none.
func (d *Directory) Owner(key holdfast.SessionKey) (holdfast.Owner, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	r, ok := d.records[key]
	return r.owner(key, ok), ok
}

// ownedElsewhere reports whether the session is known to be another node's.
func (d *Directory) ownedElsewhere(key holdfast.SessionKey) bool {
	o, ok := d.Owner(key)
	return ok && o.Node != d.self
}

// Len is how many records there are.
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

// served returns the record of a session that is ready and not doubted, with
// the channel that closes when it is no longer.
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

// Left returns the channel that closes when that epoch of the session is gone,
// leaving or replaced. It is closed already where the directory does not have
// that epoch.
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

// ended reports whether an epoch of a session is over, and whether a newer one
// has taken its place. Both are false while it lives, and while the directory
// has not come to it yet.
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

// Follow begins to watch a key.
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

// Look returns what is known of the key now, and a channel that is closed at
// the first change after that.
func (f *Follower) Look() (Snapshot, <-chan struct{}) {
	f.d.mu.RLock()
	defer f.d.mu.RUnlock()
	r, ok := f.d.records[f.key]
	s := Snapshot{Owner: r.owner(f.key, ok), Known: ok, Suspect: r.suspect}
	if g, ok := f.d.tombstones.get(f.key, time.Now()); ok {
		s.Last, s.LastAt = g.owner(f.key, true), g.at
	}
	return s, f.topic.changed
}

// Close ends the watching.
func (f *Follower) Close() {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.topic.followers--; f.topic.followers == 0 {
		delete(f.d.topics, f.key)
	}
}
