package apitest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"holdfast"
)

// forks implements api.Forks. The snapshot "v1" of session alice exists from the start.
type forks struct{ b *Backend }

func (f forks) v1() holdfast.MemorySnapshot {
	return holdfast.MemorySnapshot{Name: "v1", Key: "alice", Epoch: 7, Node: f.b.node(), Template: "web", TakenAt: Began, Until: Began.Add(24 * time.Hour),
		Bytes: 1_500_000, Pause: holdfast.Millis(60 * time.Millisecond)}
}

// Snapshots implements api.Forks.
func (f forks) Snapshots(context.Context) ([]holdfast.MemorySnapshot, error) {
	return []holdfast.MemorySnapshot{f.v1()}, f.b.failure()
}

// TakeSnapshot implements api.Forks. The key "plain" cannot be copied.
func (f forks) TakeSnapshot(_ context.Context, key, name holdfast.SessionKey, life time.Duration) (holdfast.MemorySnapshot, error) {
	s := f.v1()
	switch o, err := f.owner(key); {
	case err != nil:
		return s, err
	case key == "plain":
		return s, holdfast.WithHint(fmt.Errorf("session plain: %w", holdfast.ErrNoMemory), "give its template fork: allowed")
	case name == s.Name:
		return s, fmt.Errorf("snapshot %s: %w", name, holdfast.ErrExists)
	default:
		s.Name, s.Key, s.Epoch = name, key, o.Epoch
	}
	if life > 0 {
		s.Until = Began.Add(life)
	}
	return s, nil
}

func (f forks) owner(key holdfast.SessionKey) (holdfast.Owner, error) {
	f.b.mu.Lock()
	defer f.b.mu.Unlock()
	i, err := f.b.find(key)
	if err != nil {
		return holdfast.Owner{}, err
	}
	return f.b.sessions[i].Owner, nil
}

// RemoveSnapshot implements api.Forks.
func (f forks) RemoveSnapshot(_ context.Context, name holdfast.SessionKey) error {
	if err := f.b.failure(); err != nil || name == "v1" {
		return err
	}
	return fmt.Errorf("snapshot %s: %w", name, holdfast.ErrNotFound)
}

// StartFrom implements api.Forks.
func (f forks) StartFrom(ctx context.Context, key, name holdfast.SessionKey) (o holdfast.Owner, err error) {
	if err := f.RemoveSnapshot(ctx, name); err != nil {
		return o, err
	}
	return f.child(ctx, key, "alice", name)
}

func (f forks) child(ctx context.Context, key, parent, name holdfast.SessionKey) (o holdfast.Owner, err error) {
	if _, err := f.owner(key); err == nil {
		return o, fmt.Errorf("session %s: %w", key, holdfast.ErrExists)
	}
	if _, err := f.b.StartSession(ctx, key, "web"); err != nil {
		return o, err
	}
	f.b.mu.Lock()
	defer f.b.mu.Unlock()
	i, err := f.b.find(key)
	if err != nil {
		return o, err
	}
	s := &f.b.sessions[i]
	s.Memory, s.Parent, s.Snapshot = holdfast.Restored, parent, name
	return s.Owner, nil
}

// Fork implements api.Forks.
func (f forks) Fork(ctx context.Context, key holdfast.SessionKey, children []holdfast.SessionKey) (r holdfast.ForkReport, err error) {
	r = holdfast.ForkReport{MemorySnapshot: f.v1(), Took: holdfast.Millis(900 * time.Millisecond)}
	r.Key, r.Name = key, "fork-0123456789abcdef"
	if _, err := f.owner(key); err != nil {
		return r, err
	}
	for _, child := range slices.Sorted(slices.Values(children)) {
		o, err := f.child(ctx, child, key, r.Name)
		c := holdfast.Forked{Key: child, Node: o.Node, Epoch: o.Epoch, Took: holdfast.Millis(400 * time.Millisecond)}
		if err != nil {
			c.Error = err.Error()
		}
		r.Children = append(r.Children, c)
	}
	return r, nil
}
