package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
)

// errDisowned ends the boot of a session whose record is gone or belongs to another
// claim.
var errDisowned = fmt.Errorf("its record in the store is gone or belongs to another claim: %w", holdfast.ErrStore)

// Observe compares an event of the store's watch with the sessions of this node. If
// the event contradicts one of them, or the store was restored, the Manager reads all
// of its records again. It
// returns at once. Outside Run it does nothing.
func (m *Manager) Observe(ev store.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range ev.Owners {
		m.reclaimOrphanLocked(o)
	}
	if ev.Restored {
		m.check.Set()
	} else if e := m.sessions[ev.Key]; e != nil && e.holdsLocked() && (ev.Deleted || !m.ownsLocked(e, ev.Owner)) {
		m.check.Set()
	}
}

// holdsLocked reports whether the entry has a record, and a container that may run
// under it. This node deletes a record only after that, so the record has to exist.
func (e *entry) holdsLocked() bool {
	switch {
	case e.disowned && !e.stuck: // it is being killed
		return false
	case e.phase == booting:
		return e.claimed != 0
	}
	return e.target != nil && !e.isDead()
}

// ownsLocked reports whether a record is the entry's.
func (m *Manager) ownsLocked(e *entry, o holdfast.Owner) bool {
	return o.Node == m.cfg.Node && o.Epoch == cmp.Or(e.owner.Epoch, e.claimed)
}

// checkAlways compares this node's sessions with the store every Config.CheckEvery, and
// whenever Observe requests it, until ctx is done.
func (m *Manager) checkAlways(ctx context.Context) {
	tick := time.NewTicker(m.cfg.CheckEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-tick.C:
		case <-m.check:
		case <-ctx.Done():
			return
		}
		// Without an answer the lease decides.
		if err := m.checkOwnership(ctx); err != nil {
			m.log.Debug("comparing this node's sessions with the store", "err", err)
		}
	}
}

// checkOwnership reads the records of all sessions of this node, and ends those whose
// record is gone or belongs to another claim.
func (m *Manager) checkOwnership(ctx context.Context) error {
	m.mu.Lock()
	held := map[holdfast.SessionKey]*entry{}
	var keys []holdfast.SessionKey
	for key, e := range m.sessions {
		if e.holdsLocked() {
			held[key], keys = e, append(keys, key)
		}
	}
	m.mu.Unlock()
	limited, cancel := context.WithTimeout(ctx, claimTimeout)
	owners, err := m.deps.Store.Find(limited, keys...)
	cancel()
	if err != nil {
		return err
	}
	m.mu.Lock()
	for _, o := range owners {
		if e := held[o.Key]; m.ownsLocked(e, o) {
			delete(held, o.Key)
		} else if o.Node == m.cfg.Node {
			e.suspect = o // checked when the entry is gone
		}
	}
	var lost []*entry
	for _, e := range held {
		if e.holdsLocked() { // otherwise this node may have released it meanwhile
			lost = append(lost, e)
		}
	}
	m.mu.Unlock()
	if len(lost) > 0 {
		m.tasks.Go(func(ctx context.Context) { m.disown(ctx, lost) })
	}
	return nil
}

// disown kills the containers of sessions that this node does not own any more. It
// takes no snapshot of them, because another node may have started them.
func (m *Manager) disown(ctx context.Context, lost []*entry) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	ended := newLeaseGeneration()
	ended.end(errDisowned)
	b := &Batch{m: m}
	m.mu.Lock()
	for _, e := range lost {
		if !e.holdsLocked() {
			continue
		}
		if !e.disowned {
			m.log.Error("a session's record is gone or belongs to another claim; killing its container", "session", e.key, "epoch", cmp.Or(e.owner.Epoch, e.claimed))
			m.deps.Metrics.disowned.Inc()
		}
		e.disowned = true
		e.cancel(errDisowned)
		// A record of another claim may have the same revision, after a restore.
		e.generation, e.owner.Revision = ended, 0
		if going := m.markLocked(cause{reason: holdfast.EndDisowned, by: holdfast.ByAgent}, e); len(going) > 0 {
			b.entries = append(b.entries, e)
		} else {
			b.others = append(b.others, e)
		}
	}
	others := retainTargetsLocked(b.others)
	m.mu.Unlock()
	m.killNow(ctx, b, others)
}

// killNow kills the containers of a batch, and of sessions that other goroutines are
// ending, because those may wait for the store. It returns when all are seen dead, or
// when ctx is done.
func (m *Manager) killNow(ctx context.Context, b *Batch, others []*entry) {
	if len(b.entries)+len(others) > 0 {
		report := m.deps.Killer.Kill(ctx, targets(append(slices.Clone(b.entries), others...)))
		m.releaseLater(m.seenDead(b.entries, report))
		m.releaseTargets(others, report)
	}
	for _, e := range append(slices.Clone(b.entries), b.others...) {
		if err := m.await(ctx, e, e.dead); err != nil {
			m.log.Error("the session is not owned, and its container not seen dead in time", "session", e.key, "err", errors.Unwrap(err))
		}
	}
}
