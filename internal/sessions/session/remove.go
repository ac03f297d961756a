package session

import (
	"context"
	"time"

	"holdfast"
	"holdfast/internal/sessions/kill"
)

// remove queues a dead container for removal by the engine, in its own time. A
// full queue drops it: the next agent's Adopt finds it.
func (m *Manager) remove(id string) {
	select {
	case m.removals <- id:
	default:
		m.log.Warn("too many dead containers wait for removal", "container", short(id))
	}
}

func (m *Manager) removeQueued(ctx context.Context) {
	for {
		select {
		case id := <-m.removals:
			m.removeOne(ctx, id)
		case <-ctx.Done():
			return
		}
	}
}

// reclaimTimeout bounds the emptying of a dead container's memory: the engine's removal
// of its control group waits for that.
const reclaimTimeout = time.Second

// reclaimMemory has the kernel take back what a dead container left in its memory
// cgroup, beside everything else and before the engine removes that, which it does
// some 10 ms after a container's end. Ownership is given up by then. Where that is
// too late, or too many do it already, nothing is lost: the group stays for a while
// as a dying one.
func (m *Manager) reclaimMemory(left kill.Memory) {
	select {
	case m.reclaims <- struct{}{}:
	default:
		return
	}
	begun := m.tasks.Go(func(ctx context.Context) {
		defer func() { <-m.reclaims }()
		ctx, cancel := context.WithTimeout(ctx, reclaimTimeout)
		defer cancel()
		if err := left.Empty(ctx); err != nil && ctx.Err() == nil {
			m.log.Debug("emptying a dead container's memory", "err", err)
		}
	})
	if !begun {
		<-m.reclaims
	}
}

func (m *Manager) removeOne(ctx context.Context, id string) {
	err := retry(ctx, holdfast.ErrEngine, func() error {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		return m.deps.Engine.Remove(ctx, id)
	})
	if err != nil && ctx.Err() == nil {
		m.log.Warn("removing a dead container", "container", short(id), "err", err)
	}
}
