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
)

// How long the Directory waits for the store.
const (
	listTimeout   = 30 * time.Second // of 100,000 records
	lookTimeout   = 2 * time.Second
	listRetry     = 100 * time.Millisecond // doubled up to
	listRetryMost = 5 * time.Second
)

// Directory is a copy of all session records, for reading without the store. It
// is fed by one watch and, ahead of it, by what is read or heard elsewhere. What
// it knows of a key only moves forward: to a newer epoch, or to a later state of
// the same one; an epoch that it has seen go never comes back. Any goroutine may
// call its methods.
//
// It keeps of a record what routing needs (node, epoch, revision, state and
// template): about 150 bytes each, so that a node can afford 100,000.
type Directory struct {
	store   store.Store
	self    holdfast.NodeID
	metrics *Metrics
	log     *slog.Logger
	gone    func(holdfast.SessionKey, holdfast.Epoch) // called under mu; must not block or call back
	claimed func(holdfast.SessionKey, holdfast.Epoch) // called under mu with each new record; likewise
	own     func(holdfast.Owner)                      // called under mu with each new record of this node; likewise
	ready   chan struct{}
	recheck chan holdfast.SessionKey

	mu         sync.RWMutex
	at         holdfast.Revision // the watch has told everything up to here
	records    map[holdfast.SessionKey]record
	tombstones tombstones
	ahead      map[holdfast.SessionKey]holdfast.Revision // learned before the watch told it
	left       map[holdfast.SessionKey]leaving
	topics     map[holdfast.SessionKey]*topic
}

// record is what is kept of one session's. Names that many share are kept once.
type record struct {
	epoch    holdfast.Epoch
	revision holdfast.Revision
	node     unique.Handle[holdfast.NodeID]
	template unique.Handle[string]
	state    unique.Handle[holdfast.State]
	suspect  bool // its owner refused, or the watch has passed it by
}

// leaving is the channel that closes when an epoch ends.
type leaving struct {
	epoch holdfast.Epoch
	ch    chan struct{}
}

// topic is what those who follow one key share.
type topic struct {
	followers int
	changed   chan struct{} // closed and replaced at every change
}

// NewDirectory returns an empty Directory; Run fills it. self is this node,
// whose own writes tell how far the watch lags.
func NewDirectory(s store.Store, self holdfast.NodeID, m *Metrics, log *slog.Logger) *Directory {
	return &Directory{
		store: s, self: self, metrics: m, log: log,
		gone:       func(holdfast.SessionKey, holdfast.Epoch) {},
		own:        func(holdfast.Owner) {},
		claimed:    func(holdfast.SessionKey, holdfast.Epoch) {},
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

// Run lists all records, as often as it takes, and then follows the store until
// ctx is done. It is called once.
func (d *Directory) Run(ctx context.Context) error {
	if !d.load(ctx) {
		return nil
	}
	close(d.ready)
	var checking sync.WaitGroup
	defer checking.Wait()
	checking.Go(func() { d.recheckAll(ctx) })
	for e := range d.store.Watch(ctx, d.at) {
		d.apply(e)
	}
	if ctx.Err() == nil {
		return errors.New("the watch of session records ended by itself")
	}
	return nil
}

// load fills the directory, false when ctx was done first.
func (d *Directory) load(ctx context.Context) bool {
	for pause := listRetry; ; pause = min(2*pause, listRetryMost) {
		owners, at, err := d.list(ctx)
		if err == nil {
			d.fill(owners, at)
			return true
		}
		if ctx.Err() == nil {
			d.log.Warn("session records cannot be listed (will be tried again)", "err", err)
		}
		if !sleep(ctx, jitter(pause)) {
			return false
		}
	}
}

func (d *Directory) list(ctx context.Context) ([]holdfast.Owner, holdfast.Revision, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	return d.store.List(ctx)
}

// fill takes the first list over.
func (d *Directory) fill(owners []holdfast.Owner, at holdfast.Revision) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at = at
	for _, o := range owners {
		d.putLocked(o)
	}
	d.metrics.sessions.Set(float64(len(d.records)))
}

// apply takes one event of the watch over.
func (d *Directory) apply(e store.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at = max(d.at, e.Revision)
	delete(d.ahead, e.Key)
	if e.Deleted {
		if r, ok := d.records[e.Key]; ok && r.revision < e.Revision {
			d.removeLocked(e.Key, r, true)
		}
		d.tombstones.confirm(e.Key, e.Revision)
	} else {
		d.lag(e)
		d.putLocked(e.Owner)
	}
	d.passLocked(e.Revision)
	d.metrics.sessions.Set(float64(len(d.records)))
}

// lag measures how late the watch is, by the claims of this node: the time
// since this node's own clock was read for the record. It includes the claim's
// own way to the store.
func (d *Directory) lag(e store.Event) {
	if o := e.Owner; o.Node == d.self && o.Revision == holdfast.Revision(o.Epoch) && !o.ClaimedAt.IsZero() {
		d.metrics.lag.Observe(time.Since(o.ClaimedAt).Seconds())
	}
}

// passLocked notes that the watch has come to a revision. What was learned of an
// earlier one and not told by the watch is out of date (the watch went over it
// in a list): nobody would ever take it back, so it is looked at again.
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
		default: // who asks for it looks again all the same
		}
	}
}

func (d *Directory) recheckAll(ctx context.Context) {
	for {
		select {
		case key := <-d.recheck:
			if _, err := d.Refresh(ctx, key); err != nil && !errors.Is(err, holdfast.ErrNotFound) {
				d.log.Debug("a record that the watch passed by", "session", key, "err", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// putLocked takes a record over unless something newer is known.
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
	// The key may be a part of a longer string, which it would keep alive.
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

// mergeLocked joins what is newly heard of an epoch with what is known of it.
// States only move forward, so the later one is the newer one, also where the
// revision is not known.
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

// removeLocked takes a record out. sure is false where the watch has not told yet.
func (d *Directory) removeLocked(key holdfast.SessionKey, r record, sure bool) {
	delete(d.records, key)
	d.tombstones.add(key, r, sure, time.Now())
	d.changeLocked(key)
	d.gone(key, r.epoch)
}

// changeLocked wakes who follows the key, and ends the routes that ended.
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

// Learn takes over what was read from the store or told by a node that had read
// it. Revision may be 0 where it is not known. It is ignored where the watch
// has told something newer.
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

// Confirm is Learn for what the owner itself says: it ends a doubt.
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

// MarkSuspect notes that the owner of that epoch refused: until it confirms or the
// record changes hands, nobody is sent there without asking.
func (d *Directory) MarkSuspect(key holdfast.SessionKey, epoch holdfast.Epoch) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r, ok := d.records[key]; ok && r.epoch == epoch && !r.suspect {
		r.suspect = true
		d.records[key] = r
		d.changeLocked(key)
	}
}

// Refresh reads the record from the store, past the cache, and feeds the cache
// with it. It returns what the store said. holdfast.ErrNotFound, holdfast.ErrStore.
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
		// What came after the question was sent is newer than the answer.
		if r, ok := d.records[key]; known && ok && r.epoch == before.Epoch {
			d.removeLocked(key, r, false)
			d.metrics.sessions.Set(float64(len(d.records)))
		}
	}
	if err != nil {
		return holdfast.Owner{}, fmt.Errorf("looking past the cache: %w", err)
	}
	return o, nil
}
