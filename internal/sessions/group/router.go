package group

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/platform/tasks"
)

// Acquirer finds the sessions of clients, as the gateway does (see gateway.Sessions). Any
// goroutine may call it.
type Acquirer interface {
	Ready(key holdfast.SessionKey) (holdfast.Route, func(), bool)
	Acquire(ctx context.Context, key holdfast.SessionKey, boot func() error) (holdfast.Route, func(), error)
	Refused(key holdfast.SessionKey, r holdfast.Route)
	AwaitResume(ctx context.Context, key holdfast.SessionKey, epoch holdfast.Epoch) (holdfast.Route, error)
}

// Router is an Acquirer that gives a group one address, its name as a key. It serves each
// request, or TCP connection, by the replica that has the fewest of this gateway, and by the
// next one if several have as few.
type Router struct {
	groups *Groups
	next   Acquirer
	// owner returns the session's record as this node knows it, without asking anyone.
	owner func(holdfast.SessionKey) (holdfast.Owner, bool)

	mu      sync.Mutex
	turns   map[string]int // of each group: the replica of the last request
	open    map[holdfast.SessionKey]int
	refused map[holdfast.SessionKey]time.Time
}

// Router returns the Acquirer of a gateway, in front of that of sessions.
func (g *Groups) Router(next Acquirer, owner func(holdfast.SessionKey) (holdfast.Owner, bool)) *Router {
	return &Router{groups: g, next: next, owner: owner, turns: map[string]int{}, open: map[holdfast.SessionKey]int{}, refused: map[holdfast.SessionKey]time.Time{}}
}

// errNoBoot ends a search for a replica that does not run: only the keeper starts replicas.
var errNoBoot = errors.New("the replica does not run")

// refusedTime is how long a replica that refused a connection gets requests only if no other
// one can. Without it the next try would go to the same one, which has the fewest.
const refusedTime = time.Second

// waitPause is the pause of a request that waits for a replica.
const waitPause = 20 * time.Millisecond

// Ready implements Acquirer. Sessions of a group are left to Acquire.
func (r *Router) Ready(key holdfast.SessionKey) (holdfast.Route, func(), bool) {
	if _, ok := r.groups.spec(key); ok {
		return holdfast.Route{}, nil, false
	}
	return r.next.Ready(key)
}

// Acquire implements Acquirer. A request for a group waits until a replica is ready. A
// request for one replica waits for that one, and gets holdfast.ErrNotFound if the group
// has no such replica.
func (r *Router) Acquire(ctx context.Context, key holdfast.SessionKey, boot func() error) (holdfast.Route, func(), error) {
	spec, ok := r.groups.spec(key)
	if !ok {
		return r.next.Acquire(ctx, key, boot)
	}
	for {
		one, err := r.group(ctx, spec.Name)
		if err != nil {
			return holdfast.Route{}, nil, err
		}
		chosen, found := key, true
		if string(key) == spec.Name {
			chosen, found = r.choose(spec, one)
		} else if one.Replica(key) == nil {
			return holdfast.Route{}, nil, holdfast.WithHint(fmt.Errorf("group %s has no replica %s: %w", spec.Name, key, holdfast.ErrNotFound), "the address of the group is "+spec.Name)
		}
		if found {
			route, release, err := r.next.Acquire(ctx, chosen, func() error { return errNoBoot })
			if err == nil {
				r.count(chosen, 1)
				return route, func() { r.count(chosen, -1); release() }, nil
			}
			if !errors.Is(err, errNoBoot) {
				return route, release, err
			}
		}
		if err := tasks.Sleep(ctx, waitPause); err != nil {
			return holdfast.Route{}, nil, fmt.Errorf("waiting for a replica of group %s: %w", spec.Name, err)
		}
	}
}

// Refused implements Acquirer.
func (r *Router) Refused(key holdfast.SessionKey, at holdfast.Route) {
	if _, ok := r.groups.spec(key); ok {
		key = at.Key // of the replica
		r.mu.Lock()
		r.refused[key] = time.Now() // a group has few keys
		r.mu.Unlock()
	}
	r.next.Refused(key, at)
}

// AwaitResume implements Acquirer. A replica is never suspended.
func (r *Router) AwaitResume(ctx context.Context, key holdfast.SessionKey, epoch holdfast.Epoch) (holdfast.Route, error) {
	return r.next.AwaitResume(ctx, key, epoch)
}

// group returns a copy of a group's record. A group that its keeper has not made yet has no
// replicas.
func (r *Router) group(ctx context.Context, name string) (holdfast.Group, error) {
	v := r.groups.view(ctx, maxAge)
	if v == nil {
		return holdfast.Group{}, fmt.Errorf("group %s: %w", name, holdfast.ErrStore)
	}
	return v.groups[name].Group, nil
}

// count counts the requests and connections that a replica has.
func (r *Router) count(key holdfast.SessionKey, more int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open[key] += more; r.open[key] == 0 {
		delete(r.open, key)
	}
}

// choose returns the replica for the next request, of those that serve, and that are ready
// in the epoch that has caught up.
func (r *Router) choose(spec Spec, one holdfast.Group) (best holdfast.SessionKey, found bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, least := r.turns[spec.Name], 0
	for i := range one.Replicas {
		at := (last + 1 + i) % len(one.Replicas)
		m := one.Replicas[at]
		if m.State != holdfast.ReplicaServing {
			continue
		}
		if o, ok := r.owner(m.Key); !ok || o.State != holdfast.Ready || o.Epoch != m.Epoch && len(spec.CaughtUp) > 0 {
			continue
		}
		n := r.open[m.Key]
		if time.Since(r.refused[m.Key]) < refusedTime {
			n = math.MaxInt
		}
		if !found || n < least {
			best, found, least, r.turns[spec.Name] = m.Key, true, n, at
		}
	}
	return best, found
}
