package session

import (
	"context"
	"time"

	"holdfast"
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
