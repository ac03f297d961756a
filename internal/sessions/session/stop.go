package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
)

// killTimeout bounds the kill of one session.
const killTimeout = 10 * time.Second

// errStopped ends the boot of a session that is stopped before it is ready.
var errStopped = fmt.Errorf("it was stopped before it was ready: %w", holdfast.ErrStopped)

// Stop kills the session's container, sees it dead and releases the session. If the
// container could not be seen dead, the report names it and the session stays owned.
// If another goroutine is already ending the session, or if it was booting, Stop waits
// and the report is empty. Errors: holdfast.ErrNotFound; ctx's error if it ends first,
// in which case the work continues.
func (m *Manager) Stop(ctx context.Context, key holdfast.SessionKey) (holdfast.KillReport, error) {
	return m.stop(ctx, key, cause{reason: holdfast.EndStopped, by: holdfast.ByUser})
}

// Replace is Stop for a session that gets a new container.
func (m *Manager) Replace(ctx context.Context, key holdfast.SessionKey) (holdfast.KillReport, error) {
	return m.stop(ctx, key, cause{reason: holdfast.EndReplaced, by: holdfast.ByReplacement})
}

func (m *Manager) stop(ctx context.Context, key holdfast.SessionKey, why cause) (holdfast.KillReport, error) {
	m.mu.Lock()
	e := m.sessions[key]
	if e == nil || e.phase == failed {
		m.mu.Unlock()
		return holdfast.KillReport{}, fmt.Errorf("session %s: %w", key, holdfast.ErrNotFound)
	}
	e.cancel(errStopped) // has no effect once the session is ready
	going := m.markLocked(why, e)
	m.mu.Unlock()
	m.announce(ctx, going...)
	report := m.end(ctx, going)
	if len(report.Left) > 0 {
		return report, nil
	}
	err := m.await(ctx, e, e.gone)
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := e.snapshot; s.done {
		report.Steps = append(report.Steps, holdfast.Step{Name: "snapshot", Took: s.took, Count: 1})
		report.Notice = s.problem()
	}
	return report, err
}

// await waits for one of the entry's channels.
func (m *Manager) await(ctx context.Context, e *entry, ch <-chan struct{}) error {
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for session %s to end: %w", e.key, ctx.Err())
	}
}

// announce writes the state Leaving to the records of sessions, for the nodes that
// route to them. An error has no effect on what follows.
func (m *Manager) announce(ctx context.Context, entries ...*entry) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for _, e := range entries {
		_ = m.rewrite(ctx, e, func(o *holdfast.Owner) { o.State = holdfast.Leaving })
	}
}

// rewrite writes the changed record of a session. After an error, the store may have the old record
// or the new one. After store.ErrStale the next attempt may succeed: another write of this node came
// before, or its answer was lost.
func (m *Manager) rewrite(ctx context.Context, e *entry, change func(*holdfast.Owner)) error {
	m.mu.Lock()
	next := e.owner
	m.mu.Unlock()
	change(&next)
	got, err := m.deps.Store.Advance(ctx, next)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.log.Debug("a session's record is not rewritten", "session", e.key, "state", next.State, "memory", next.Memory, "err", err)
		if errors.Is(err, store.ErrStale) && got.Epoch == e.owner.Epoch && got.Node == e.owner.Node && got.Revision > e.owner.Revision {
			e.owner.Revision = got.Revision
		}
		return err
	}
	e.owner = got
	return nil
}

// end kills the containers of entries that are marked as leaving, and releases the
// sessions seen dead. Requests for these sessions wait until they are gone.
func (m *Manager) end(ctx context.Context, going []*entry) holdfast.KillReport {
	if len(going) == 0 {
		return holdfast.KillReport{Dead: []string{}, Left: []holdfast.Leftover{}, Steps: []holdfast.Step{}}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	report := m.deps.Killer.Kill(ctx, targets(going))
	m.releaseLater(m.seenDead(going, report))
	return report
}

// markLocked closes the sessions to new connections, and notes why they end. It returns
// the entries that it has marked. Entries that were marked before are ended by another
// goroutine.
func (m *Manager) markLocked(why cause, entries ...*entry) []*entry {
	var going []*entry
	for _, e := range entries {
		if e.phase != ready && !(e.phase == leaving && e.stuck && e.target != nil) {
			continue
		}
		if e.phase == ready {
			close(e.left)
			e.end.cause, e.end.at = why, time.Now().UTC()
			if err := e.endSleep(); err != nil { // the killer thaws it, too
				m.log.Warn("a session that leaves cannot be woken", "session", e.key, "err", err)
			}
			if e.owner.Memory == holdfast.Saving { // by an earlier agent, and the container runs on
				e.owner.Memory = ""
			}
		}
		e.phase, e.stuck = leaving, false
		going = append(going, e)
	}
	return going
}

// seenDead returns the entries whose containers are dead according to the report. The
// other sessions stay owned, because a new owner would start a second container.
func (m *Manager) seenDead(entries []*entry, report holdfast.KillReport) []*entry {
	m.deps.Metrics.killed(report)
	m.deps.Deadman.Forget(report.Dead...)
	m.mu.Lock()
	var dead []*entry
	for _, e := range entries {
		if slices.Contains(report.Dead, e.owner.ContainerID) {
			e.markDeadLocked()
			dead = append(dead, e)
		} else {
			m.stuckLocked(e)
		}
	}
	m.mu.Unlock()
	m.reportEnds(dead) // before the release, and before the containers are removed
	return dead
}

// releaseDead releases sessions whose containers are dead. After an error the caller
// may call it again.
func (m *Manager) releaseDead(ctx context.Context, dead []*entry) error {
	owners := make([]holdfast.Owner, len(dead))
	m.mu.Lock()
	for i, e := range dead {
		owners[i] = e.owner
	}
	m.mu.Unlock()
	if err := m.giveUp(ctx, owners); err != nil {
		return err
	}
	for _, e := range dead {
		m.finish(e)
	}
	return nil
}

// releaseLater releases sessions whose containers are dead, after their snapshots, in
// goroutines of its own. They retry until the store is available.
func (m *Manager) releaseLater(dead []*entry) {
	with, without := m.splitBySnapshot(dead)
	if len(without) > 0 {
		m.tasks.Go(func(ctx context.Context) { m.releaseUntilDone(ctx, without) })
	}
	for _, e := range with {
		m.tasks.Go(func(ctx context.Context) { m.snapAndRelease(ctx, e) })
	}
}

func (m *Manager) releaseUntilDone(ctx context.Context, dead []*entry) {
	m.persist(ctx, "releasing sessions", dead[0].key, func(ctx context.Context) error { return m.releaseDead(ctx, dead) })
}

// giveUp releases the records, first in one transaction with the revisions known here,
// then one by one those that have another revision: a write of this node may have
// succeeded although its answer was lost. A record with another epoch belongs to
// another claim.
func (m *Manager) giveUp(ctx context.Context, owners []holdfast.Owner) error {
	if m.deps.Cloned != nil && m.deps.Cloned() {
		return fmt.Errorf("the records are another agent's: %w", ErrLeaseLost)
	}
	owners, err := m.releaseSaving(ctx, owners)
	if err != nil || len(owners) == 0 {
		return err
	}
	released, err := m.deps.Store.Release(ctx, owners...)
	if err != nil {
		return err
	}
	for _, o := range owners {
		if slices.Contains(released, o.Key) {
			continue
		}
		now, err := m.deps.Store.Get(ctx, o.Key)
		if errors.Is(err, holdfast.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		if now.Epoch != o.Epoch || now.Node != o.Node {
			continue
		}
		if _, err := m.deps.Store.Release(ctx, now); err != nil {
			return err
		}
	}
	return nil
}

// finish removes a session whose container is dead and whose ownership was released.
func (m *Manager) finish(e *entry) {
	if e.target != nil {
		m.reclaimMemory(e.target.Memory())
	}
	m.close(e)
	m.dropNetwork(e)
	m.removeIdentity(e.owner)
	if e.route.ContainerID != "" {
		m.removeReported(e)
	}
}

// close removes the entry for good and closes its target.
func (m *Manager) close(e *entry) {
	if e.target == nil { // it was found dead
		m.mu.Lock()
		defer m.mu.Unlock()
		m.dropLocked(e)
		return
	}
	m.deps.Watcher.Remove(e.target)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dropLocked(e)
	e.finished = true
	if e.targetRefs == 0 {
		e.target.Close()
	}
}

// retainTargetsLocked keeps the targets open of entries that another goroutine ends,
// so that they can be killed at the same time. A second SIGKILL does no harm.
func retainTargetsLocked(entries []*entry) []*entry {
	var out []*entry
	for _, e := range entries {
		if e.target != nil && !e.finished {
			e.targetRefs++
			out = append(out, e)
		}
	}
	return out
}

// releaseTargets records which of the entries were seen dead, and closes the targets
// that the other goroutine has finished.
func (m *Manager) releaseTargets(entries []*entry, report holdfast.KillReport) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range entries {
		if slices.Contains(report.Dead, e.target.ID) {
			e.markDeadLocked()
		}
		e.targetRefs--
		if e.targetRefs == 0 && e.finished {
			e.target.Close()
		}
	}
}

// died cleans up after a container that ended by itself, or that was killed and died
// late. Other processes in its cgroup are killed.
func (m *Manager) died(ctx context.Context, e *entry) {
	peak, kills := e.target.Memory().Last() // at once: the engine removes the group
	m.mu.Lock()
	byItself := e.phase == ready
	end := cause{}
	saving := byItself && e.owner.Memory == holdfast.Saving // the end of a checkpoint
	if saving {
		end = cause{reason: holdfast.EndSuspended, by: holdfast.ByAgent}
	}
	if byItself {
		e.end.peak, e.end.oomKills = peak, kills
	}
	going := m.markLocked(end, e)
	if saving {
		e.owner.Memory = holdfast.Saving
	}
	m.mu.Unlock()
	if byItself {
		m.log.Warn("session's container ended by itself", "session", e.key, "container", short(e.route.ContainerID))
	}
	m.end(ctx, going)
}

// Refused reports that the route could not be reached. If the container has died, its
// session is released, so that the next Acquire boots a new one.
func (m *Manager) Refused(key holdfast.SessionKey, r holdfast.Route) {
	m.mu.Lock()
	e := m.sessions[key]
	dead := e != nil && e.phase == ready && e.owner.Epoch == r.Epoch && !e.target.Alive()
	m.mu.Unlock()
	if dead {
		m.tasks.Go(func(ctx context.Context) { m.died(ctx, e) })
	}
}
