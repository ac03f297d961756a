package session

import (
	"context"
	"errors"
	"time"
)

// watchLocked asks to be told when the session's container dies.
func (m *Manager) watchLocked(e *entry) {
	err := m.addWatch(e)
	if err == nil {
		return
	}
	m.log.Error("watching a container (will be tried again; until then it is looked at every second)", "session", e.key, "err", err)
	e.unwatched = true
	m.tasks.Go(func(ctx context.Context) { m.watchLater(ctx, e) })
}

func (m *Manager) addWatch(e *entry) error {
	died := func() { m.tasks.Go(func(ctx context.Context) { m.died(ctx, e) }) }
	err := m.deps.Watcher.Add(e.target, died)
	if e.holder != nil {
		err = errors.Join(err, m.deps.Watcher.Add(e.holder, died))
	}
	return err
}

// watchLater looks after a container that cannot be watched (no descriptor
// left, say) until it can be, or is dead.
func (m *Manager) watchLater(ctx context.Context, e *entry) {
	tick := time.NewTicker(stuckPoll)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-e.left:
			return
		case <-ctx.Done():
			return
		}
		m.mu.Lock()
		unwatched := e.phase == ready && m.addWatch(e) != nil
		dead := unwatched && (e.target.Init().Exited() || e.networkLost())
		e.unwatched = unwatched
		m.mu.Unlock()
		if dead {
			m.died(ctx, e)
		}
		if dead || !unwatched {
			return
		}
	}
}

func (m *Manager) unwatch(e *entry) {
	m.deps.Watcher.Remove(e.target)
	m.mu.Lock()
	holder := e.holder
	m.mu.Unlock()
	if holder != nil {
		m.deps.Watcher.Remove(holder)
	}
}

// stuckLocked keeps a session whose container could not be seen dead, and ends
// it once that is dead.
func (m *Manager) stuckLocked(e *entry) {
	m.log.Error("container cannot be seen dead; its session stays owned", "session", e.key, "container", short(e.owner.ContainerID))
	e.stuck = true
	m.tasks.Go(func(ctx context.Context) { m.awaitDeath(ctx, e) })
}

// stuckPoll is how often a container that would not die is looked at.
const stuckPoll = time.Second

// awaitDeath ends a stuck session when its container is dead at last. The
// watcher does not tell of that: it knows of the init only, which may be dead
// long before its cgroup is empty.
func (m *Manager) awaitDeath(ctx context.Context, e *entry) {
	tick := time.NewTicker(stuckPoll)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-e.gone:
			return
		case <-ctx.Done():
			return
		}
		m.mu.Lock()
		stuck := e.stuck
		dead := stuck && !e.target.Alive()
		m.mu.Unlock()
		if dead {
			m.died(ctx, e)
		}
		if dead || !stuck { // else another is at it
			return
		}
	}
}
