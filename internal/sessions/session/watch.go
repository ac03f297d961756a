package session

import (
	"context"
	"time"
)

// watchLocked registers the session's container with the watcher.
func (m *Manager) watchLocked(e *entry) {
	err := m.addWatch(e)
	if err == nil {
		return
	}
	m.log.Error("watching a container (will retry; until then it is polled every second)", "session", e.key, "err", err)
	e.unwatched = true
	m.tasks.Go(func(ctx context.Context) { m.watchLater(ctx, e) })
}

func (m *Manager) addWatch(e *entry) error {
	return m.deps.Watcher.Add(e.target, func() { m.tasks.Go(func(ctx context.Context) { m.died(ctx, e) }) })
}

// watchLater polls a container that cannot be watched, for example because no file
// descriptor is left, until it can be watched or is dead.
func (m *Manager) watchLater(ctx context.Context, e *entry) {
	m.poll(ctx, e, e.left, func() (dead, done bool) {
		e.unwatched = e.phase == ready && m.addWatch(e) != nil
		return e.unwatched && e.target.Init().Exited(), !e.unwatched
	})
}

// poll calls look with mu held every stuckPoll, until the entry is dead or look is
// done, or until end is closed. It ends a dead entry.
func (m *Manager) poll(ctx context.Context, e *entry, end <-chan struct{}, look func() (dead, done bool)) {
	tick := time.NewTicker(stuckPoll)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-end:
			return
		case <-ctx.Done():
			return
		}
		m.mu.Lock()
		dead, done := look()
		m.mu.Unlock()
		if dead {
			m.died(ctx, e)
		}
		if dead || done {
			return
		}
	}
}

// stuckLocked keeps a session whose container could not be seen dead, and ends it once
// the container is dead.
func (m *Manager) stuckLocked(e *entry) {
	m.log.Error("container cannot be seen dead; its session stays owned", "session", e.key, "container", short(e.owner.ContainerID))
	e.stuck = true
	m.tasks.Go(func(ctx context.Context) { m.awaitDeath(ctx, e) })
}

// stuckPoll is the interval at which a stuck container is checked.
const stuckPoll = time.Second

// awaitDeath ends a stuck session once its container is dead. The watcher does not
// report that: it knows only the init, which may exit long before the cgroup is empty.
func (m *Manager) awaitDeath(ctx context.Context, e *entry) {
	m.poll(ctx, e, e.gone, func() (dead, done bool) {
		return e.stuck && !e.target.Alive(), !e.stuck // if it is not stuck, another goroutine ends it
	})
}
