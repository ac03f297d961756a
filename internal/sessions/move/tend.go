package move

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
)

// claimQueue is how many claims of suspended sessions may wait to be checked.
const claimQueue = 256

// beginInterval is how often a store that is unavailable at the start is tried again.
const beginInterval = time.Second

// Record is a suspended session as the store has it.
type Record struct {
	holdfast.Suspended
	Note store.Note
}

// FindSuspended returns the record of a suspended session, or
// holdfast.ErrNotFound.
func FindSuspended(ctx context.Context, s store.Store, key holdfast.SessionKey) (Record, error) {
	all, err := s.ListNotes(ctx, store.SuspendedNotes+string(key))
	if err != nil {
		return Record{}, err
	}
	for _, n := range all {
		if n.Name != store.SuspendedNotes+string(key) {
			continue
		}
		r := Record{Note: n}
		if err := json.Unmarshal(n.Value, &r.Suspended); err != nil {
			return r, fmt.Errorf("suspended session %s: %w", key, err)
		}
		return r, nil
	}
	return Record{}, holdfast.ErrNotFound
}

// IsSuspended reports whether a session without an owner is suspended, and its memory is not
// lost.
func IsSuspended(ctx context.Context, s store.Store, key holdfast.SessionKey) (bool, error) {
	r, err := FindSuspended(ctx, s, key)
	if errors.Is(err, holdfast.ErrNotFound) {
		return false, nil
	}
	return err == nil && r.Lost == "" && r.From == nil, err
}

// ListSuspended returns the records of all suspended sessions, by key. It omits
// those that cannot be decoded.
func ListSuspended(ctx context.Context, s store.Store) ([]Record, error) {
	notes, err := s.ListNotes(ctx, store.SuspendedNotes)
	if err != nil {
		return nil, fmt.Errorf("list suspended sessions: %w", err)
	}
	var out []Record
	for _, n := range notes {
		r := Record{Note: n}
		if json.Unmarshal(n.Value, &r.Suspended) == nil {
			out = append(out, r)
		}
	}
	return out, nil
}

// Run removes suspended sessions that are too old, too large or superseded, and writes the
// learned rates to their file, until ctx is done.
func (m *Mover) Run(ctx context.Context) error {
	defer m.rates.save()
	if m.images == nil {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	begin := time.NewTicker(beginInterval)
	defer begin.Stop()
	m.sweep(ctx, time.Now())
	changes, err := m.beginWatch(ctx)
	for {
		select {
		case <-begin.C:
			if changes == nil {
				changes, err = m.beginWatch(ctx)
			} else {
				begin.Stop()
			}
			if err != nil {
				m.o.Log.Debug("looking through the suspended sessions (will be tried again)", "err", err)
			}
		case e, open := <-changes:
			if !open {
				return nil // ctx is done
			}
			if !e.Deleted {
				m.Claimed(e.Key, e.Owner.Epoch)
			}
		case <-tick.C:
			m.dropComplete() // the agent has taken its sessions over
			m.sweep(ctx, time.Now())
			m.rates.save()
			if changes != nil {
				m.saveSeen(ctx)
			}
		case c := <-m.suspendeds.claims:
			m.removeClaimed(ctx, c)
		case <-ctx.Done():
			for changes != nil {
				if _, open := <-changes; !open {
					break
				}
			}
			return nil
		}
	}
}

// saveSeen keeps the revision up to which this node has seen the claims of its suspended
// sessions.
func (m *Mover) saveSeen(ctx context.Context) {
	_, now, err := m.o.Store.List(ctx)
	if err == nil {
		err = m.seen.write(now)
	}
	if err != nil && ctx.Err() == nil {
		m.o.Log.Warn("it is not recorded which claims of suspended sessions this node has seen", "err", err)
	}
}

// indexSuspended adds what an earlier agent of this node has suspended to the index.
func (m *Mover) indexSuspended(ctx context.Context) error {
	all, err := ListSuspended(ctx, m.o.Store)
	for _, r := range all {
		if r.Node == m.o.Node && r.Lost == "" && r.From == nil {
			m.suspendeds.add(r.Key, r.Epoch)
		}
	}
	return err
}

// Claimed is called for every claim in the fleet. It never blocks.
func (m *Mover) Claimed(key holdfast.SessionKey, epoch holdfast.Epoch) {
	m.suspendeds.claimed(key, epoch)
}

// removeClaimed removes a suspended session that was claimed by an agent without support
// for suspended sessions. The claim of any other agent removes the record itself. The image
// has an old state and must not be restored.
func (m *Mover) removeClaimed(ctx context.Context, c claim) {
	r, err := FindSuspended(ctx, m.o.Store, c.key)
	if err != nil || r.Last() >= c.epoch {
		return // the record is removed or of a later epoch; after an error sweep finds it
	}
	_ = m.Drop(ctx, r, superseded) // it is logged
}

// sweep removes suspended sessions that cannot be used any more at the time now.
func (m *Mover) sweep(ctx context.Context, now time.Time) {
	m.collect(ctx, 0, now)
	m.sweepSnapshots(ctx, now)
	all, err := ListSuspended(ctx, m.o.Store)
	if err != nil || len(all) == 0 {
		return // until the next sweep
	}
	owners, _, err := m.o.Store.List(ctx)
	if err != nil {
		return
	}
	owned := map[holdfast.SessionKey]holdfast.Epoch{}
	for _, o := range owners {
		owned[o.Key] = o.Epoch
	}
	for _, r := range all {
		own := r.Node == m.o.Node
		switch {
		case own && now.After(r.Until) || now.After(r.Until.Add(recordGrace)):
			// A claim since the list was read removes the record, and resumes from the image.
			if still, err := FindSuspended(ctx, m.o.Store, r.Key); err == nil && still.Epoch == r.Epoch {
				_ = m.Drop(ctx, r, Expired) // it is logged
			}
		case own && owned[r.Key] > r.Last():
			m.removeClaimed(ctx, claim{r.Key, owned[r.Key]})
		}
	}
}

// collect removes surplus images so that more bytes fit.
func (m *Mover) collect(ctx context.Context, more int64, now time.Time) {
	all, err := m.images.List()
	if err != nil {
		m.o.Log.Warn("the images of suspended sessions cannot be listed", "err", err)
		return
	}
	all, snapshots := splitSnapshots(all)
	for _, s := range snapshots { // they stay until they expire
		more += s.Bytes
	}
	records, err := ListSuspended(ctx, m.o.Store)
	recorded := map[holdfast.SessionKey]Record{}
	for _, r := range records {
		recorded[r.Key] = r
	}
	known := func(i StoredImage) bool { return err != nil || recorded[i.Key].Epoch == i.Epoch }
	all, taken := m.missing.split(all, known, now)
	for _, i := range taken { // a claim removes the record, and the boot then takes the image
		more += i.Bytes
	}
	for _, d := range Surplus(all, m.images.limits, more, now, known) {
		r, ok := recorded[d.Key]
		if !ok || r.Epoch != d.Epoch {
			r = Record{Suspended: holdfast.Suspended{Key: d.Key, Epoch: d.Epoch, Node: m.o.Node}}
		}
		_ = m.Drop(ctx, r, d.Reason) // it is logged
	}
}

// missing has the images without a record, and when that was first seen. The zero value is ready.
type missing struct {
	mu    sync.Mutex
	since map[Label]time.Time
}

// split separates the images that have been without a record for less than unknownGrace: their
// sessions may be about to resume from them.
func (x *missing) split(all []StoredImage, known func(StoredImage) bool, now time.Time) (rest, taken []StoredImage) {
	x.mu.Lock()
	defer x.mu.Unlock()
	since := map[Label]time.Time{}
	for _, i := range all {
		if known(i) {
			rest = append(rest, i)
			continue
		}
		id := Label{Key: i.Key, Epoch: i.Epoch}
		at, seen := x.since[id]
		if !seen {
			at = now
		}
		since[id] = at
		if now.Sub(at) < unknownGrace {
			taken = append(taken, i)
		} else {
			rest = append(rest, i)
		}
	}
	x.since = since
	return rest, taken
}

// Drop removes a suspended session: first its record from the store, so that no
// node asks for an image that is gone, and then its image if this node can
// access it. It logs and returns a failure.
func (m *Mover) Drop(ctx context.Context, r Record, reason string) error {
	err := error(nil)
	if r.Note.Name != "" {
		err = m.o.Store.DropNote(ctx, r.Note)
	}
	if err == nil && m.images != nil && r.From == nil && (r.Shared || r.Node == m.o.Node) {
		if err = m.images.Drop(ctx, Label{Key: r.Key, Epoch: r.Epoch}); err == nil {
			m.images.drops.WithLabelValues(reason).Inc()
		}
	}
	if err != nil {
		m.o.Log.Warn("the memory of a suspended session cannot be removed", "session", r.Key, "epoch", r.Epoch, "err", err)
		return fmt.Errorf("remove the memory of session %s, epoch %d: %w", r.Key, r.Epoch, err)
	}
	m.suspendeds.drop(r.Key, r.Epoch)
	m.o.Log.Info("the memory of a suspended session is removed", "session", r.Key, "epoch", r.Epoch, "reason", reason)
	return nil
}
