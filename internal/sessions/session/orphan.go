package session

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"holdfast"
	"holdfast/internal/sessions/kill"
)

// orphanCalls is the number of concurrent engine calls about orphan containers. A call
// about one of them may hang.
const orphanCalls = 16

// killOrphans kills containers of this node that belong to no session, and sees them
// dead. A failure with one does not affect the others. The engine's view is not
// enough: it may not know a container that it once started (because it has another
// data directory, or is another engine), or report it as ended. killOrphans returns
// the reason, by id, for each container that is not seen dead. The deadman forgets the
// dead ones. The engine removes them later, except containers that never started:
// those are removed at once, because the engine may still execute an earlier agent's
// start.
func (m *Manager) killOrphans(ctx context.Context, ids []string) map[string]error {
	live, left := m.openOrphans(ctx, ids)
	defer func() {
		for _, t := range live {
			t.Close()
		}
	}()
	if len(live) > 0 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
		defer cancel()
		report := m.deps.Killer.Kill(ctx, live)
		m.deps.Metrics.killed(report)
		for _, l := range report.Left {
			left[l.ContainerID] = fmt.Errorf("it cannot be killed: %s", l.Reason)
		}
	}
	for id, err := range m.deps.Opener.SeeDead(ctx, ids) {
		left[id] = errors.Join(left[id], err)
	}
	for _, id := range ids {
		if left[id] == nil {
			m.deps.Deadman.Forget(id)
			m.remove(id)
		}
	}
	return left
}

// openOrphans opens the containers that run according to the engine. For those that
// the engine cannot report on, it returns the reason by id.
func (m *Manager) openOrphans(ctx context.Context, ids []string) ([]*kill.Target, map[string]error) {
	var (
		mu    sync.Mutex
		calls errgroup.Group
		live  []*kill.Target
		left  = map[string]error{}
	)
	calls.SetLimit(orphanCalls)
	for _, id := range ids {
		calls.Go(func() error {
			t, err := m.openOrphan(ctx, id)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				left[id] = err
			}
			if t != nil {
				live = append(live, t)
			}
			return nil
		})
	}
	_ = calls.Wait() // the calls return no error
	return live, left
}

// openOrphan returns nil for a container that, according to the engine, does not run
// and will not run.
func (m *Manager) openOrphan(ctx context.Context, id string) (*kill.Target, error) {
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	c, err := m.deps.Engine.Inspect(ctx, id)
	if errors.Is(err, holdfast.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !c.Running() {
		if ended(c) {
			return nil, nil
		}
		return nil, m.deps.Engine.Remove(ctx, id)
	}
	t, err := m.deps.Opener.Open(c.ID, c.Name, c.Pid)
	if errors.Is(err, kill.ErrGone) {
		return nil, nil
	}
	return t, err
}

// keepStuckLocked creates an entry for a record, or for a key without a record, whose
// containers an earlier agent started and that are not seen dead. The key stays taken
// and Run retries. If there is no key, or the key has another entry, the new entry is
// kept in detached.
func (m *Manager) keepStuckLocked(o holdfast.Owner, containers []string) {
	e := newLeavingEntry(o)
	if due, _ := m.dueForSnapshot([]holdfast.Owner{o}); len(due) > 0 {
		e.template.Snapshot = m.snapshotOf(o.Template)
	}
	e.stuck, e.stuckContainers, e.generation = true, containers, m.generation
	if o.Key == "" || m.sessions[o.Key] != nil {
		m.detached = append(m.detached, e)
		return
	}
	m.sessions[o.Key] = e
}

// endStuck ends an entry that keepStuckLocked created.
func (m *Manager) endStuck(ctx context.Context, e *entry) {
	done := m.persist(ctx, "ending a container of an earlier agent", e.key, func(ctx context.Context) error {
		return notDead(m.killOrphans(ctx, e.stuckContainers))
	})
	if !done {
		return // the next agent finds it
	}
	m.mu.Lock()
	e.stuck = false
	e.markDeadLocked()
	m.detached = slices.DeleteFunc(m.detached, func(x *entry) bool { return x == e })
	m.mu.Unlock()
	m.releaseLater([]*entry{e})
}

// notDead converts the result of killOrphans to an error.
func notDead(left map[string]error) error {
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(left)) {
		errs = append(errs, fmt.Errorf("container %s is not seen dead: %w", short(id), left[id]))
	}
	return errors.Join(errs...)
}

// names returns the short ids as text.
func names(ids []string) string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = short(id)
	}
	return strings.Join(out, ", ")
}

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

// watchOwnRecords feeds ReclaimOrphan and Observe from the store until ctx is done. While the
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
		m.Observe(e)
		if !e.Deleted && !e.Restored {
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
	m.orphans++
	m.tasks.Go(func(ctx context.Context) {
		m.persist(ctx, "releasing an orphan record", o.Key, func(ctx context.Context) error { return m.releaseOrphan(ctx, o) })
		m.mu.Lock()
		defer m.mu.Unlock()
		m.orphans--
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
	for _, c := range m.ours(list) {
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
