package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
	"holdfast/internal/sessions/move"
)

// wokenAtOnce is how many claims of suspended sessions may wait to be looked at.
const wokenAtOnce = 256

// suspendedOne is a suspended session, and its note. holdfast.ErrNotFound.
func suspendedOne(ctx context.Context, s store.Store, key holdfast.SessionKey) (holdfast.Suspended, store.Note, error) {
	all, err := s.ListNotes(ctx, store.SuspendedNotes+string(key))
	if err != nil {
		return holdfast.Suspended{}, store.Note{}, err
	}
	for _, n := range all {
		if n.Name != store.SuspendedNotes+string(key) {
			continue
		}
		var one holdfast.Suspended
		if err := json.Unmarshal(n.Value, &one); err != nil {
			return one, n, fmt.Errorf("suspended session %s: %w", key, err)
		}
		return one, n, nil
	}
	return holdfast.Suspended{}, store.Note{}, holdfast.ErrNotFound
}

// suspendedNote is a suspended session as the store has it.
type suspendedNote struct {
	holdfast.Suspended
	note store.Note
}

// suspendedAll are all suspended sessions, by key. What cannot be read is left out.
func suspendedAll(ctx context.Context, s store.Store) ([]suspendedNote, error) {
	notes, err := s.ListNotes(ctx, store.SuspendedNotes)
	if err != nil {
		return nil, fmt.Errorf("listing suspended sessions: %w", err)
	}
	var out []suspendedNote
	for _, n := range notes {
		one := suspendedNote{note: n}
		if json.Unmarshal(n.Value, &one.Suspended) == nil {
			out = append(out, one)
		}
	}
	return out, nil
}

// Run drops images that are too old, too many, or of nobody, until ctx is done.
func (m *mover) Run(ctx context.Context) error {
	tick := time.NewTicker(tendShelf)
	defer tick.Stop()
	if m.shelf != nil {
		m.watchOver(ctx)
		m.tend(ctx, time.Now())
	}
	for m.shelf != nil {
		select {
		case <-tick.C:
			m.tend(ctx, time.Now())
		case c := <-m.asleep.woken:
			m.expireClaimed(ctx, c)
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// watchOver takes note of what an earlier agent of this node has suspended.
func (m *mover) watchOver(ctx context.Context) {
	all, err := suspendedAll(ctx, m.store)
	if err != nil {
		return // tend looks at them all the same
	}
	for _, s := range all {
		if s.Node == m.node {
			m.asleep.add(s.Key, s.Epoch)
		}
	}
}

// sleepers are the sessions whose images this node keeps.
type sleepers struct {
	woken chan claimedKey // those that somebody has claimed

	mu sync.Mutex // held for a moment only: claimed is called by who may not wait
	of map[holdfast.SessionKey]holdfast.Epoch
}

// claimedKey is a claim of a session that was suspended.
type claimedKey struct {
	key   holdfast.SessionKey
	epoch holdfast.Epoch
}

func newSleepers() *sleepers {
	return &sleepers{woken: make(chan claimedKey, wokenAtOnce), of: map[holdfast.SessionKey]holdfast.Epoch{}}
}

func (s *sleepers) add(key holdfast.SessionKey, epoch holdfast.Epoch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of[key] = max(epoch, s.of[key])
}

// claimed hears of every claim in the fleet; it never blocks.
func (s *sleepers) claimed(key holdfast.SessionKey, epoch holdfast.Epoch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if of, ok := s.of[key]; !ok || epoch <= of {
		return
	}
	delete(s.of, key)
	select {
	case s.woken <- claimedKey{key, epoch}:
	default: // tend finds it, as long as it lives
	}
}

// expireClaimed drops a suspended session that an agent has claimed of a version that
// does not know of suspended sessions: a claim of any other takes the note with it. What
// is left would take the session back in time.
func (m *mover) expireClaimed(ctx context.Context, c claimedKey) {
	s, note, err := suspendedOne(ctx, m.store, c.key)
	if err != nil || s.Epoch >= c.epoch {
		return // it is gone, as it should be, or of a later life; or tend sees it
	}
	m.forget(ctx, suspendedNote{s, note}, superseded)
}

// tend drops what there is no use for at a moment.
func (m *mover) tend(ctx context.Context, now time.Time) {
	m.collect(ctx, 0, now)
	all, err := suspendedAll(ctx, m.store)
	if err != nil || len(all) == 0 {
		return // the next time
	}
	lives, _, err := m.store.List(ctx)
	if err != nil {
		return
	}
	alive := map[holdfast.SessionKey]holdfast.Epoch{}
	for _, o := range lives {
		alive[o.Key] = o.Epoch
	}
	for _, s := range all {
		own := s.Node == m.node
		switch {
		case own && now.After(s.Until) || now.After(s.Until.Add(lateNote)):
			m.forget(ctx, s, move.TooOld)
		case own && alive[s.Key] > s.Epoch:
			m.forget(ctx, s, superseded)
		}
	}
}

// makeRoom drops the oldest images where an image of so many bytes would be too
// much.
func (m *mover) makeRoom(ctx context.Context, bytes int64) { m.collect(ctx, bytes, time.Now()) }

func (m *mover) collect(ctx context.Context, more int64, now time.Time) {
	all, err := m.shelf.List()
	if err != nil {
		m.log.Warn("images of suspended sessions cannot be looked through", "err", err)
		return
	}
	notes, err := suspendedAll(ctx, m.store)
	noted := map[holdfast.SessionKey]suspendedNote{}
	for _, n := range notes {
		noted[n.Key] = n
	}
	known := func(k move.Kept) bool { return err != nil || noted[k.Key].Epoch == k.Epoch }
	for _, d := range move.Surplus(all, m.shelf.bounds, more, now, known) {
		s, ok := noted[d.Key]
		if !ok || s.Epoch != d.Epoch {
			s = suspendedNote{Suspended: holdfast.Suspended{Key: d.Key, Epoch: d.Epoch, Node: m.node}}
		}
		m.forget(ctx, s, d.Why)
	}
}

// forget drops a suspended session: from the store first, so that nobody comes for an
// image that is gone, and then its image, where this node can get at it.
func (m *mover) forget(ctx context.Context, s suspendedNote, why string) {
	err := error(nil)
	if s.note.Name != "" {
		err = m.store.DropNote(ctx, s.note)
	}
	if err == nil && m.shelf != nil && (s.Shared || s.Node == m.node) {
		if err = m.shelf.Drop(ctx, s.Key, s.Epoch); err == nil {
			m.shelf.drops.WithLabelValues(why).Inc()
		}
	}
	if err != nil {
		m.log.Warn("the memory of a suspended session stays behind", "session", s.Key, "epoch", s.Epoch, "err", err)
		return
	}
	m.log.Info("the memory of a suspended session is dropped", "session", s.Key, "epoch", s.Epoch, "reason", why)
}
