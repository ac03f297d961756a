package session

import (
	"context"
	"errors"

	"holdfast"
)

// ReclaimOrphan checks a record of this node that the store shows to all nodes. If no
// session of this Manager uses the record and it is unchanged in the store, it is
// released. Such a record exists if a claim is written long after its sender gave up;
// it would block its key. ReclaimOrphan returns at once. Its work continues until the
// store is available. Outside Run it does nothing.
func (m *Manager) ReclaimOrphan(o holdfast.Owner) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reclaimOrphanLocked(o)
}

// watchOwnRecords feeds ReclaimOrphan from the store until ctx is done. While the
// store is unavailable it waits.
func (m *Manager) watchOwnRecords(ctx context.Context) {
	var owners []holdfast.Owner
	var at holdfast.Revision
	if !m.persist(ctx, "looking for orphan records of this node", "", func(ctx context.Context) (err error) {
		owners, at, err = m.deps.Store.List(ctx)
		return err
	}) {
		return
	}
	for _, o := range owners {
		m.ReclaimOrphan(o)
	}
	for e := range m.deps.Store.Watch(ctx, at) {
		if !e.Deleted {
			m.ReclaimOrphan(e.Owner)
		}
	}
}

func (m *Manager) reclaimOrphanLocked(o holdfast.Owner) {
	if m.tasks.Context() == nil || o.Node != m.cfg.Node {
		return
	}
	if e := m.sessions[o.Key]; e != nil && e.phase != failed {
		// Most likely the entry's own record. If it is not, that is found at the
		// entry's end.
		e.suspect = o
		return
	} else if e != nil {
		e.suspect = holdfast.Owner{} // o is the newer one
		m.dropLocked(e)
	}
	// The entry makes requests for the key wait meanwhile.
	e := newLeavingEntry(o)
	e.markDeadLocked()
	m.sessions[o.Key] = e
	m.tasks.Go(func(ctx context.Context) {
		m.persist(ctx, "releasing an orphan record", o.Key, func(ctx context.Context) error { return m.releaseOrphan(ctx, o) })
		m.mu.Lock()
		defer m.mu.Unlock()
		m.dropLocked(e)
	})
}

// releaseOrphan releases a record of this node that no session uses, if it still
// exists. No container should belong to it; one that does is killed first.
func (m *Manager) releaseOrphan(ctx context.Context, o holdfast.Owner) error {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	now, err := m.deps.Store.Get(ctx, o.Key)
	if errors.Is(err, holdfast.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if now.Epoch != o.Epoch || now.Node != o.Node {
		return nil
	}
	list, err := m.deps.Engine.List(ctx, map[string]string{LabelNode: string(m.cfg.Node), LabelSession: string(o.Key)})
	if err != nil {
		return err
	}
	var its []string
	if now.ContainerID != "" {
		its = append(its, now.ContainerID)
	}
	for _, c := range list {
		if epochOf(c) == o.Epoch && c.ID != now.ContainerID {
			its = append(its, c.ID)
		}
	}
	if err := notDead(m.killOrphans(ctx, its)); err != nil {
		return err
	}
	m.log.Warn("releasing an orphan record", "session", o.Key, "epoch", o.Epoch, "state", o.State)
	return m.giveUp(ctx, []holdfast.Owner{now})
}
