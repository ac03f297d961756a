package move

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast"
	"holdfast/bench/rig"
	"holdfast/internal/platform/store"
	"holdfast/internal/platform/store/etcd"
)

// observer records the changes of the records in etcd, with their times.
type observer struct {
	store *etcd.Store
	seen  chan seen
	end   context.CancelFunc
	ended chan struct{}
}

// seen is a change of a session's record.
type seen struct {
	store.Event
	at time.Time
}

func newObserver(ctx context.Context) (*observer, error) {
	s, err := etcd.Dial(ctx, etcd.Config{Endpoints: []string{rig.FleetStore}})
	if err != nil {
		return nil, err
	}
	_, from, err := s.List(ctx)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	life, end := context.WithCancel(context.Background())
	o := &observer{store: s, seen: make(chan seen, 4096), end: end, ended: make(chan struct{})}
	events := s.Watch(life, from)
	go func() {
		defer close(o.ended)
		for e := range events {
			select {
			case o.seen <- seen{e, time.Now()}:
			default: // the reader does not need all changes
			}
		}
	}()
	return o, nil
}

// forget drops all changes recorded so far.
func (o *observer) forget() {
	for {
		select {
		case <-o.seen:
		default:
			return
		}
	}
}

// life has the times of the changes of a moved session's record.
type life struct {
	gone, claimed, ready time.Time
	owner                holdfast.Owner // when it was ready
}

// await waits until the session is ready in a newer epoch.
func (o *observer) await(ctx context.Context, key holdfast.SessionKey, epoch holdfast.Epoch) (l life, err error) {
	for {
		select {
		case e := <-o.seen:
			switch {
			case e.Key != key:
			case e.Deleted:
				l.gone = e.at
			case e.Owner.Epoch == epoch:
			case e.Owner.State == holdfast.Claimed:
				l.claimed = e.at
			case e.Owner.State == holdfast.Ready:
				l.ready, l.owner = e.at, e.Owner
				return l, nil
			}
		case <-ctx.Done():
			return l, fmt.Errorf("session %s did not come up again: %w", key, ctx.Err())
		}
	}
}

func (o *observer) close() error {
	o.end()
	<-o.ended
	return o.store.Close()
}
