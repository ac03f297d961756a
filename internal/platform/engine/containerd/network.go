package containerd

import (
	"context"
	"fmt"
	"iter"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// Networks returns none: the containers' network is not one that users make.
func (e *Engine) Networks(context.Context, map[string]string) ([]engine.Network, error) {
	return nil, nil
}

// RemoveUnusedNetwork returns holdfast.ErrNotFound.
func (e *Engine) RemoveUnusedNetwork(_ context.Context, id string) error {
	return fmt.Errorf("remove network %s: %w", id, holdfast.ErrNotFound)
}

// CreateNetwork is engine.ErrUnsupported.
func (e *Engine) CreateNetwork(_ context.Context, name string, _ map[string]string) (string, error) {
	return "", holdfast.WithHint(fmt.Errorf("create network %s: %w", name, engine.ErrUnsupported), "jobs of several containers need Docker: engine.name: docker")
}

// RemoveNetwork does nothing.
func (e *Engine) RemoveNetwork(context.Context, string) error { return nil }

// Activity yields the uses of images and volumes, until ctx is done or the time
// until. containerd keeps no events, so a Gap comes first, and another after each
// break of the connection.
func (e *Engine) Activity(ctx context.Context, since, until time.Time) iter.Seq[engine.Activity] {
	return func(yield func(engine.Activity) bool) {
		if !until.IsZero() {
			if wait := time.Until(until); wait > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, wait)
				defer cancel()
			} else {
				yield(engine.Activity{Gap: true, Since: since, Time: until})
				return
			}
		}
		last := since
		e.follow(ctx, func(ev engine.Event) bool {
			if ev.Gap {
				gap := engine.Activity{Gap: true, Since: last, Time: time.Now()}
				last = gap.Time
				return yield(gap)
			}
			last = ev.Time
			a, ok := activityOf(ev)
			return !ok || yield(a)
		}, nil)
	}
}

// activityOf is the use in an event.
func activityOf(ev engine.Event) (engine.Activity, bool) {
	a := engine.Activity{Time: ev.Time, Action: ev.Action}
	switch {
	case ev.Type == engine.OfContainer && ev.Action != "exec_die":
		a.Image = ev.Image
	case ev.Type == engine.OfImage && ev.Action != "delete":
		a.Image = ev.ID
	}
	return a, a.Image != ""
}
