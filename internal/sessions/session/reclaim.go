package session

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"holdfast"
)

// ReclaimOrphan is told of a record of this node, as the store shows it to everybody.
// One that no session of this Manager stands behind is given up, if it still is
// what it was: a claim may be written long after whoever sent it has given up,
// and would keep its key from everybody. Disown returns at once; what it begins
// goes on until the store is back. Outside Run it does nothing.
func (m *Manager) ReclaimOrphan(o holdfast.Owner) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reclaimOrphanLocked(o)
}

// WatchOwnRecords feeds Disown from the store while Run runs, until ctx is done: where
// no fleet does, which sees every record anyway. While the store is away it waits.
func (m *Manager) WatchOwnRecords(ctx context.Context) error {
	select {
	case <-m.begun:
	case <-ctx.Done():
		return nil
	}
	level := slog.LevelWarn
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		owners, at, err := m.deps.Store.List(ctx)
		if err == nil {
			for _, o := range owners {
				m.ReclaimOrphan(o)
			}
			for e := range m.deps.Store.Watch(ctx, at) {
				if !e.Deleted {
					m.ReclaimOrphan(e.Owner)
				}
			}
			return nil // ctx is done
		}
		if ctx.Err() == nil {
			m.log.Log(ctx, level, "looking for records of this node that no session stands behind (will be tried again)", "err", err)
			level = slog.LevelDebug // said once
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
	}
}

func (m *Manager) reclaimOrphanLocked(o holdfast.Owner) {
	if m.tasks.Context() == nil || o.Node != m.cfg.Node {
		return
	}
	if e := m.sessions[o.Key]; e != nil && e.phase != failed {
		// Its own record most likely. If not, that shows at its end.
		e.suspect = o
		return
	} else if e != nil {
		e.suspect = holdfast.Owner{} // this is the newer one
		m.dropLocked(e)
	}
	// An entry of its own makes those who ask for the key wait meanwhile.
	e := newEntry(o.Key, Template{Name: o.Template})
	e.owner, e.phase = o, leaving
	close(e.settled)
	close(e.left)
	e.markDeadLocked()
	m.sessions[o.Key] = e
	m.tasks.Go(func(ctx context.Context) {
		m.persist(ctx, "giving up a record without a session", o.Key, func(ctx context.Context) error { return m.releaseOrphan(ctx, o) })
		m.mu.Lock()
		defer m.mu.Unlock()
		m.dropLocked(e)
	})
}

// releaseOrphan gives up a record of this node that no session stands behind, if it is
// still there. No container should be its; one that is dies first.
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
	m.log.Warn("giving up a record that no session stands behind", "session", o.Key, "epoch", o.Epoch, "state", o.State)
	return m.giveUp(ctx, []holdfast.Owner{now})
}
