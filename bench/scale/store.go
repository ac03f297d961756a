package scale

import (
	"context"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
)

// meteredStore measures the calls and the watch of a node's store.
type meteredStore struct {
	store.Store
	meter *meter
}

func (s meteredStore) KeepAlive(ctx context.Context, id store.LeaseID) error {
	start := time.Now()
	err := s.Store.KeepAlive(ctx, id)
	s.meter.call("renew the lease", start, err)
	return err
}

func (s meteredStore) PutNode(ctx context.Context, n holdfast.Node, id store.LeaseID) error {
	start := time.Now()
	err := s.Store.PutNode(ctx, n, id)
	s.meter.call("write the node's record", start, err)
	return err
}

func (s meteredStore) Nodes(ctx context.Context) ([]holdfast.Node, error) {
	start := time.Now()
	nodes, err := s.Store.Nodes(ctx)
	s.meter.call("list all nodes", start, err)
	return nodes, err
}

func (s meteredStore) Claim(ctx context.Context, o holdfast.Owner, id store.LeaseID) (holdfast.Owner, error) {
	start := time.Now()
	o, err := s.Store.Claim(ctx, o, id)
	s.meter.call("claim", start, err)
	return o, err
}

func (s meteredStore) List(ctx context.Context) ([]holdfast.Owner, holdfast.Revision, error) {
	start := time.Now()
	owners, at, err := s.Store.List(ctx)
	s.meter.call("list all sessions", start, err)
	return owners, at, err
}

// Watch passes events on, and measures their delay.
func (s meteredStore) Watch(ctx context.Context, after holdfast.Revision) <-chan store.Event {
	out := make(chan store.Event)
	go func() {
		defer close(out)
		for e := range s.Store.Watch(ctx, after) {
			s.meter.event(e)
			select {
			case out <- e:
			case <-ctx.Done(): // Watch closes its channel
			}
		}
	}()
	return out
}

// blindStore is the store of a node whose directory stays empty, because one process has not
// enough memory for all directories. Such a node boots the sessions that clients request.
// No client asks it for the owner of a session.
type blindStore struct{ meteredStore }

func (blindStore) List(context.Context) ([]holdfast.Owner, holdfast.Revision, error) {
	return nil, 0, nil
}

func (blindStore) Watch(ctx context.Context, _ holdfast.Revision) <-chan store.Event {
	out := make(chan store.Event)
	context.AfterFunc(ctx, func() { close(out) })
	return out
}
