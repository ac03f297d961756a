package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
	"unique"

	"holdfast"
	"holdfast/internal/platform/store"
	"holdfast/internal/platform/tasks"
)

// How long the Directory waits for the store.
const (
	listTimeout   = 30 * time.Second // for 100,000 records
	lookTimeout   = 2 * time.Second
	listRetry     = 100 * time.Millisecond // doubled up to listRetryMost
	listRetryMost = 5 * time.Second
)

// Directory is a copy of all session records that can be read without the store. One
// watch updates it. Records that were read or received elsewhere may arrive ahead of
// the watch. The state of a key only moves forward: to a newer epoch, or to a later
// state of the same epoch. An epoch that was seen to end never returns. Any goroutine
// may call its methods.
//
// A record keeps what routing needs: node, epoch, revision, state and template. That
// is about 150 bytes, so that a node can keep 100,000 records.
type Directory struct {
	store   store.Store
	self    holdfast.NodeID
	metrics *Metrics
	log     *slog.Logger
	gone    func(holdfast.SessionKey, holdfast.Epoch) // called with mu held; must not block or call back
	claimed func(holdfast.SessionKey, holdfast.Epoch) // called with mu held for each new record; must not block or call back
	own     func(holdfast.Owner)                      // called with mu held for each new record of this node; must not block or call back
	event   func(store.Event)                         // called for each event of the watch; must not block or call back
	// vanished is called with mu held for each record of another node that was deleted
	// before its session began to leave; must not block or call back.
	vanished func(holdfast.Owner)

	ready   chan struct{}
	recheck chan holdfast.SessionKey

	mu         sync.RWMutex
	at         holdfast.Revision // the watch has reported everything up to here
	records    map[holdfast.SessionKey]record
	tombstones tombstones
	ahead      map[holdfast.SessionKey]holdfast.Revision // learned ahead of the watch
	left       map[holdfast.SessionKey]leaving
	topics     map[holdfast.SessionKey]*topic
}

// record is what the Directory keeps of a session's record. Strings that many records
// share are stored once.
type record struct {
	epoch    holdfast.Epoch
	revision holdfast.Revision
	node     unique.Handle[holdfast.NodeID]
	template unique.Handle[string]
	state    unique.Handle[holdfast.State]
	suspect  bool // its owner refused, or the watch has passed it without an event
}

// leaving holds the channel that closes when an epoch ends.
type leaving struct {
	epoch holdfast.Epoch
	ch    chan struct{}
}

// topic is shared by all followers of one key.
type topic struct {
	followers int
	changed   chan struct{} // closed and replaced at every change
}

// NewDirectory returns an empty Directory. Run fills it. self is this node; the
// directory measures the watch's lag by the writes of self.
func NewDirectory(s store.Store, self holdfast.NodeID, m *Metrics, log *slog.Logger) *Directory {
	return &Directory{
		store: s, self: self, metrics: m, log: log,
		gone:       func(holdfast.SessionKey, holdfast.Epoch) {},
		own:        func(holdfast.Owner) {},
		event:      func(store.Event) {},
		claimed:    func(holdfast.SessionKey, holdfast.Epoch) {},
		vanished:   func(holdfast.Owner) {},
		ready:      make(chan struct{}),
		recheck:    make(chan holdfast.SessionKey, 256),
		records:    map[holdfast.SessionKey]record{},
		tombstones: newTombstones(),
		ahead:      map[holdfast.SessionKey]holdfast.Revision{},
		left:       map[holdfast.SessionKey]leaving{},
		topics:     map[holdfast.SessionKey]*topic{},
	}
}

// Ready is closed when the directory is complete for the first time.
func (d *Directory) Ready() <-chan struct{} { return d.ready }

// Run lists all records, with retries, and then follows the store until ctx is done.
// It is called once.
func (d *Directory) Run(ctx context.Context) error {
	if !d.load(ctx) {
		return nil
	}
	close(d.ready)
	var checking sync.WaitGroup
	defer checking.Wait()
	checking.Go(func() { d.recheckAll(ctx) })
	for e := range d.store.Watch(ctx, d.at) {
		d.event(e)
		d.apply(e)
	}
	if ctx.Err() == nil {
		return errors.New("the watch of session records ended by itself")
	}
	return nil
}

// load fills the directory. It returns false if ctx is done first.
func (d *Directory) load(ctx context.Context) bool {
	for pause := listRetry; ; pause = min(2*pause, listRetryMost) {
		owners, at, err := d.list(ctx)
		if err == nil {
			d.fill(owners, at)
			return true
		}
		if ctx.Err() == nil {
			d.log.Warn("listing the session records failed (will retry)", "err", err)
		}
		if tasks.Sleep(ctx, jitter(pause)) != nil {
			return false
		}
	}
}

func (d *Directory) list(ctx context.Context) ([]holdfast.Owner, holdfast.Revision, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	return d.store.List(ctx)
}

// fill adds the first list.
func (d *Directory) fill(owners []holdfast.Owner, at holdfast.Revision) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at = at
	for _, o := range owners {
		d.putLocked(o)
	}
	d.metrics.sessions.Set(float64(len(d.records)))
}

// apply adds one event of the watch.
func (d *Directory) apply(e store.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e.Restored {
		d.restartLocked(e)
		return
	}
	d.at = max(d.at, e.Revision)
	delete(d.ahead, e.Key)
	if e.Deleted {
		if r, ok := d.records[e.Key]; ok && r.revision < e.Revision {
			d.removeLocked(e.Key, r, true)
			if r.node.Value() != d.self && r.state.Value() != holdfast.Leaving {
				d.vanished(holdfast.Owner{Key: e.Key, Node: r.node.Value(), Epoch: r.epoch, Template: r.template.Value(), State: r.state.Value()})
			}
		}
		d.tombstones.confirm(e.Key, e.Revision)
	} else {
		d.lag(e)
		d.putLocked(e.Owner)
	}
	d.passLocked(e.Revision)
	d.metrics.sessions.Set(float64(len(d.records)))
}

// restartLocked replaces all records by those of a store that was restored. Older
// epochs may be among them.
func (d *Directory) restartLocked(e store.Event) {
	d.log.Error("the store was restored from a backup; the session records are read anew", "sessions", len(e.Owners), "before", len(d.records))
	before := d.records
	d.records, d.tombstones, d.at = map[holdfast.SessionKey]record{}, newTombstones(), e.Revision
	clear(d.ahead)
	for _, o := range e.Owners {
		d.putLocked(o)
	}
	for key, r := range before {
		if _, ok := d.records[key]; !ok {
			d.changeLocked(key)
			d.gone(key, r.epoch)
		}
	}
	d.metrics.sessions.Set(float64(len(d.records)))
}

// lag measures how late the watch is, by the claims of this node. It is the time since
// this node read its own clock for the record, and includes the write to the store.
func (d *Directory) lag(e store.Event) {
	if o := e.Owner; o.Node == d.self && o.Revision == holdfast.Revision(o.Epoch) && !o.ClaimedAt.IsZero() {
		d.metrics.lag.Observe(time.Since(o.ClaimedAt).Seconds())
	}
}

// passLocked records that the watch has reached a revision. A record that was learned
// from an earlier revision without an event of the watch is out of date: the watch
// skipped it in a list. No later event would correct it, so it is read again from the
// store.
func (d *Directory) passLocked(at holdfast.Revision) {
	for key, rev := range d.ahead {
		if rev >= at {
			continue
		}
		delete(d.ahead, key)
		d.tombstones.confirm(key, at)
		r, ok := d.records[key]
		if !ok {
			continue
		}
		r.suspect = true
		d.records[key] = r
		d.changeLocked(key)
		select {
		case d.recheck <- key:
		default: // a resolver that needs the key reads it anyway
		}
	}
}

func (d *Directory) recheckAll(ctx context.Context) {
	for {
		select {
		case key := <-d.recheck:
			if _, err := d.Refresh(ctx, key); err != nil && !errors.Is(err, holdfast.ErrNotFound) {
				d.log.Debug("reading a record that the watch skipped", "session", key, "err", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// putLocked adds a record unless a newer one is known.
func (d *Directory) putLocked(o holdfast.Owner) {
	r, ok := d.records[o.Key]
	switch {
	case !ok && d.tombstones.covers(o.Key, o.Epoch), ok && o.Epoch < r.epoch:
		return
	case ok && o.Epoch == r.epoch:
		d.mergeLocked(o, r)
		return
	}
	d.tombstones.remove(o.Key)
	// The key may be part of a longer string, which it would keep in memory.
	d.records[holdfast.SessionKey(strings.Clone(string(o.Key)))] = record{
		epoch: o.Epoch, revision: max(o.Revision, holdfast.Revision(o.Epoch)),
		node: unique.Make(o.Node), template: unique.Make(o.Template), state: unique.Make(o.State),
	}
	d.claimed(o.Key, o.Epoch)
	if o.Node == d.self {
		d.own(o)
	}
	d.changeLocked(o.Key)
}

// mergeLocked merges new information about an epoch into its record. States only move
// forward, so the later state is the newer one, even if the revision is unknown.
func (d *Directory) mergeLocked(o holdfast.Owner, r record) {
	before := r
	if o.Revision > r.revision {
		r.revision = o.Revision
	}
	if r.state.Value().CanBecome(o.State) {
		r.state = unique.Make(o.State)
	}
	if o.Template != "" {
		r.template = unique.Make(o.Template)
	}
	if r != before {
		d.records[o.Key] = r
		d.changeLocked(o.Key)
	}
}

// removeLocked removes a record. confirmed is false if the watch has not reported the
// removal yet.
func (d *Directory) removeLocked(key holdfast.SessionKey, r record, sure bool) {
	delete(d.records, key)
	d.tombstones.add(key, r, sure, time.Now())
	d.changeLocked(key)
	d.gone(key, r.epoch)
}

// changeLocked wakes the followers of the key and ends routes that are no longer
// valid.
func (d *Directory) changeLocked(key holdfast.SessionKey) {
	if l, ok := d.left[key]; ok {
		r, ok := d.records[key]
		if !ok || r.epoch != l.epoch || r.state.Value() == holdfast.Leaving {
			close(l.ch)
			delete(d.left, key)
		}
	}
	if t := d.topics[key]; t != nil {
		close(t.changed)
		t.changed = make(chan struct{})
	}
}

// Learn adds a record that was read from the store, or sent by a node that had read
// it. Revision may be 0 if it is unknown. The record is ignored if the watch has
// reported a newer one.
func (d *Directory) Learn(o holdfast.Owner) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.learnLocked(o)
}

func (d *Directory) learnLocked(o holdfast.Owner) {
	rev := max(o.Revision, holdfast.Revision(o.Epoch))
	if r, ok := d.records[o.Key]; !ok || r.epoch != o.Epoch {
		if rev <= d.at {
			return // the watch is past it and has no such record: it is gone
		}
		if ok && o.Epoch < r.epoch || d.tombstones.covers(o.Key, o.Epoch) {
			return
		}
		d.ahead[o.Key] = rev
	}
	d.putLocked(o)
	d.metrics.sessions.Set(float64(len(d.records)))
}

// Confirm is Learn for a record that the owner itself sent. The record is no longer
// suspect.
func (d *Directory) Confirm(o holdfast.Owner) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.learnLocked(o)
	if r, ok := d.records[o.Key]; ok && r.epoch == o.Epoch && r.suspect {
		r.suspect = false
		d.records[o.Key] = r
		d.changeLocked(o.Key)
	}
}

// MarkSuspect records that the owner of that epoch refused. Until the owner confirms
// or the record changes, no client is routed there without a request to the owner
// first.
func (d *Directory) MarkSuspect(key holdfast.SessionKey, epoch holdfast.Epoch) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r, ok := d.records[key]; ok && r.epoch == epoch && !r.suspect {
		r.suspect = true
		d.records[key] = r
		d.changeLocked(key)
	}
}

// Refresh reads the record from the store instead of the cache and updates the cache
// with it. It returns the store's answer. Errors: holdfast.ErrNotFound,
// holdfast.ErrStore.
func (d *Directory) Refresh(ctx context.Context, key holdfast.SessionKey) (holdfast.Owner, error) {
	before, known := d.Owner(key)
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	o, err := d.store.Get(ctx, key)
	d.metrics.storeRead(err)
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case err == nil:
		d.learnLocked(o)
	case errors.Is(err, holdfast.ErrNotFound):
		// A record that arrived after the request was sent is newer than the answer.
		if r, ok := d.records[key]; known && ok && r.epoch == before.Epoch {
			d.removeLocked(key, r, false)
			d.metrics.sessions.Set(float64(len(d.records)))
		}
	}
	if err != nil {
		return holdfast.Owner{}, fmt.Errorf("reading the session record from the store: %w", err)
	}
	return o, nil
}
