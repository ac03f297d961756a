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
	case m.trash <- id:
	default:
		m.log.Warn("too many dead containers wait for removal", "container", short(id))
	}
}

func (m *Manager) removeTrash(ctx context.Context) {
	for {
		select {
		case id := <-m.trash:
			m.removeOne(ctx, id)
		case <-ctx.Done():
			return
		}
	}
}

// emptyLimit bounds the emptying of a dead container's memory: the engine's removal
// of its control group waits for that.
const emptyLimit = time.Second

// emptyMemory has the kernel take back what a dead container left in its memory
// cgroup, beside everything else and before the engine removes that, which it does
// some 10 ms after a container's end. Ownership is given up by then. Where that is
// too late, or too many do it already, nothing is lost: the group stays for a while
// as a dying one.
func (m *Manager) emptyMemory(left kill.Memory) {
	select {
	case m.empties <- struct{}{}:
	default:
		return
	}
	begun := m.tasks.Go(func(ctx context.Context) {
		defer func() { <-m.empties }()
		ctx, cancel := context.WithTimeout(ctx, emptyLimit)
		defer cancel()
		if err := left.Empty(ctx); err != nil && ctx.Err() == nil {
			m.log.Debug("emptying a dead container's memory", "err", err)
		}
	})
	if !begun {
		<-m.empties
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
