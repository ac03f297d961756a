package session

import (
	"context"
	"time"

	"holdfast"
	"holdfast/internal/sessions/kill"
)

// remove queues a dead container for removal by the engine. If the queue is full, the
// container is left to the next agent's Adopt.
func (m *Manager) remove(id string) {
	select {
	case m.removals <- id:
	default:
		m.log.Warn("too many dead containers are queued for removal", "container", short(id))
	}
}

func (m *Manager) removeQueued(ctx context.Context) {
	for {
		select {
		case id := <-m.removals:
			if m.removeOne(ctx, id); ctx.Err() != nil {
				m.remove(id) // it may have been interrupted
			}
		case <-ctx.Done():
			return
		}
	}
}

// lastRemovals bounds the removals at the end of a manager without sessions.
const lastRemovals = 3 * time.Second

// removeLast removes the dead containers that are queued when the manager has ended. The next
// agent's Adopt removes the others, but there may be none for long.
func (m *Manager) removeLast() {
	ctx, cancel := context.WithTimeout(context.Background(), lastRemovals)
	defer cancel()
	for ctx.Err() == nil {
		select {
		case id := <-m.removals:
			m.removeOne(ctx, id)
		default:
			return
		}
	}
}

// reclaimTimeout bounds the reclaim of a dead container's memory, because the engine's
// removal of the cgroup waits for it.
const reclaimTimeout = time.Second

// reclaimMemory makes the kernel reclaim what a dead container left in its memory
// cgroup. It runs after the release of the ownership, in parallel with everything
// else, and before the engine removes the cgroup, about 10 ms after a container's end.
// If it is too late, or too many reclaims are running, nothing is lost: the cgroup
// remains as a dying one for a while.
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
			m.log.Debug("reclaiming the memory of a dead container", "err", err)
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
