package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast"
)

// suspendedPoll is the time between two looks whether a session is still suspended. Its note
// disappears without a claim if the session is stopped, or its image expires.
const suspendedPoll = 15 * time.Second

// AwaitResume waits while the session, which left at that epoch, is suspended, is being
// suspended, or boots. It returns where the session is ready after that: the node, the epoch and
// Left of the route are set, and the node is "" for this one. Without a node that has the session,
// the route is zero. The error is that of ctx.
func (f *Fleet) AwaitResume(ctx context.Context, key holdfast.SessionKey, epoch holdfast.Epoch) (holdfast.Route, error) {
	follow := f.dir.Follow(key)
	defer follow.Close()
	for read := false; ; {
		if err := f.deps.Local.AwaitGone(ctx, key); err != nil {
			return holdfast.Route{}, err
		}
		s, changed := follow.Look()
		o := s.Owner
		switch {
		case s.Known && o.Epoch > epoch && o.State == holdfast.Ready:
			return f.routeTo(o), nil
		case s.Known && (o.Epoch > epoch || o.State == holdfast.Leaving): // it boots, or leaves
		case !read: // the directory may lag
			read = true
			_, _ = f.dir.Refresh(ctx, key) // after an error, what the directory knows counts
			continue
		case s.Known: // the session has not left
			return holdfast.Route{}, nil
		default:
			suspended, err := f.deps.IsSuspended(ctx, key)
			if err == nil && !suspended {
				// A claim deletes the note in the write that makes the record, and may have come
				// between the two reads.
				_, err := f.dir.Refresh(ctx, key)
				if errors.Is(err, holdfast.ErrNotFound) {
					return holdfast.Route{}, nil
				}
				if err == nil {
					continue
				}
			}
			read = false
		}
		if !wait(ctx, changed, suspendedPoll) {
			return holdfast.Route{}, fmt.Errorf("waiting for session %s to be resumed: %w", key, ctx.Err())
		}
	}
}

// routeTo returns the part of the route to a session that AwaitResume sets.
func (f *Fleet) routeTo(o holdfast.Owner) holdfast.Route {
	r := holdfast.Route{Key: o.Key, Node: o.Node, Epoch: o.Epoch, Left: f.dir.Left(o.Key, o.Epoch)}
	if o.Node == f.cfg.Node {
		r.Node = ""
	}
	return r
}
