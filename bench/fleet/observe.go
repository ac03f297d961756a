package fleet

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"holdfast"
	"holdfast/bench/rig"
	"holdfast/internal/platform/linux/boottime"
	"holdfast/internal/platform/store"
	"holdfast/internal/platform/store/etcd"
)

// now returns CLOCK_BOOTTIME, the clock of all times that the checks compare.
func now() time.Duration { return time.Duration(boottime.Now()) }

// change is one change of a session's record, as reported by etcd.
type change struct {
	at    time.Duration
	key   holdfast.SessionKey
	gone  bool
	owner holdfast.Owner // the record after the change; the last record if it is gone
}

// observer watches the records in etcd directly, without a proxy.
type observer struct {
	store *etcd.Store
	from  holdfast.Revision
	end   context.CancelFunc
	ended chan struct{}

	mu      sync.Mutex
	changes []change
	present map[holdfast.SessionKey]holdfast.Owner
}

func newObserver(ctx context.Context, endpoints []string) (*observer, error) {
	s, err := etcd.Dial(ctx, etcd.Config{Endpoints: endpoints})
	if err != nil {
		return nil, err
	}
	o := &observer{store: s, present: map[holdfast.SessionKey]holdfast.Owner{}, ended: make(chan struct{})}
	if _, o.from, err = s.List(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return o, nil
}

// start watches until close.
func (o *observer) start() {
	ctx, cancel := context.WithCancel(context.Background())
	o.end = cancel
	events := o.store.Watch(ctx, o.from)
	go func() {
		defer close(o.ended)
		for e := range events {
			o.note(e)
		}
	}()
}

func (o *observer) close() error {
	if o.end != nil {
		o.end()
		<-o.ended
	}
	return o.store.Close()
}

func (o *observer) note(e store.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case e.Restored:
		o.replaceLocked(e.Owners)
	case e.Deleted:
		o.changes = append(o.changes, change{at: now(), key: e.Key, gone: true, owner: o.present[e.Key]})
		delete(o.present, e.Key)
	default:
		o.changes = append(o.changes, change{at: now(), key: e.Key, owner: e.Owner})
		o.present[e.Key] = e.Owner
	}
}

// replaceLocked notes the records of an etcd that was restored, as changes of those before.
func (o *observer) replaceLocked(owners []holdfast.Owner) {
	at, old := now(), o.present
	o.present = map[holdfast.SessionKey]holdfast.Owner{}
	for _, owner := range owners {
		o.present[owner.Key] = owner
		if owner.Epoch != old[owner.Key].Epoch || owner.State != old[owner.Key].State {
			o.changes = append(o.changes, change{at: at, key: owner.Key, owner: owner})
		}
	}
	for key, owner := range old {
		if o.present[key].Epoch != owner.Epoch {
			o.changes = append(o.changes, change{at: at, key: key, gone: true, owner: owner})
		}
	}
}

// owned returns the sessions that a node serves now, or with "" all nodes.
func (o *observer) owned(id holdfast.NodeID) map[holdfast.SessionKey]holdfast.Epoch {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := map[holdfast.SessionKey]holdfast.Epoch{}
	for key, owner := range o.present {
		if (id == "" || owner.Node == id) && owner.State == holdfast.Ready {
			out[key] = owner.Epoch
		}
	}
	return out
}

// forget deletes the records of sessions, as a program that is not Holdfast would.
func (o *observer) forget(ctx context.Context, sessions map[holdfast.SessionKey]holdfast.Epoch) error {
	ctx, cancel := context.WithTimeout(ctx, rig.Patience)
	defer cancel()
	owners, err := o.store.Find(ctx, slices.Collect(maps.Keys(sessions))...)
	if err == nil {
		_, err = o.store.Release(ctx, owners...)
	}
	return err
}

// moved reports whether each of the sessions is served in a later epoch.
func (o *observer) moved(from map[holdfast.SessionKey]holdfast.Epoch) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for key, epoch := range from {
		if now := o.present[key]; now.Epoch <= epoch || now.State != holdfast.Ready {
			return false
		}
	}
	return true
}

// lastKey is claimed at the end. When the watch reports it, all earlier changes were seen.
const lastKey holdfast.SessionKey = "end-of-the-bench"

// all returns every change so far.
func (o *observer) all(ctx context.Context) ([]change, error) {
	ctx, cancel := context.WithTimeout(ctx, rig.Patience)
	defer cancel()
	lease, _, err := o.store.Grant(ctx, rig.Patience)
	if err != nil {
		return nil, err
	}
	if _, err := o.store.Claim(ctx, holdfast.Owner{Key: lastKey, State: holdfast.Claimed}, lease); err != nil {
		return nil, err
	}
	for ctx.Err() == nil {
		if changes, last := o.untilLast(); last {
			return changes, nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil, fmt.Errorf("watching records: etcd has not reported all changes: %w", ctx.Err())
}

func (o *observer) untilLast() ([]change, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	i := slices.IndexFunc(o.changes, func(c change) bool { return c.key == lastKey })
	return slices.Clone(o.changes[:max(i, 0)]), i >= 0
}
