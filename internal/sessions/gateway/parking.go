package gateway

import (
	"context"
	"errors"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"holdfast"
)

var (
	errParkedTooLong = errors.New("the session did not get ready in time")
	errParkingFull   = errors.New("too many requests wait for a session")
	errStopping      = errors.New("the gateway is stopping")
)

// grace is how long a request above the limits may take to find its session
// ready. A request for a session that can sleep passes through the parking also
// while the session is awake, and a burst to it must not be refused.
const grace = 20 * time.Millisecond

// parking limits how many requests wait for sessions. It is sharded by key, so
// that requests for different sessions do not contend for one lock.
type parking struct {
	perKey, total int
	metrics       *Metrics
	seed          maphash.Seed
	parked        atomic.Int64
	shards        [64]shard
}

type shard struct {
	mu     sync.Mutex
	closed bool
	keys   map[holdfast.SessionKey]int
	places map[*place]struct{}
}

// place is the entry of one waiting request.
type place struct {
	cancel context.CancelCauseFunc
}

func newParking(perKey, total int, m *Metrics) *parking {
	p := &parking{perKey: perKey, total: total, metrics: m, seed: maphash.MakeSeed()}
	for i := range p.shards {
		p.shards[i].keys = map[holdfast.SessionKey]int{}
		p.shards[i].places = map[*place]struct{}{}
	}
	return p
}

// wait calls f with a context that ends when the request has waited for limit,
// the client has gone or the gateway stops; the cause tells which. Above the
// limits of parking the context ends after grace.
func (p *parking) wait(ctx context.Context, key holdfast.SessionKey, limit time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	pl := &place{cancel}
	cause := errParkedTooLong
	s := &p.shards[maphash.String(p.seed, string(key))%uint64(len(p.shards))]
	within, open := p.enter(s, key, pl)
	if !open {
		return errStopping
	}
	defer p.leave(s, key, pl)
	if !within {
		limit, cause = min(grace, limit), errParkingFull
	}
	ctx, stop := context.WithTimeoutCause(ctx, limit, cause)
	defer stop()

	start := time.Now()
	err := f(ctx)
	p.metrics.parkTime.Observe(time.Since(start).Seconds())
	if err != nil && ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Cause(ctx))) {
		return context.Cause(ctx)
	}
	return err
}

func (p *parking) enter(s *shard, key holdfast.SessionKey, pl *place) (within, open bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false, false
	}
	s.keys[key]++
	s.places[pl] = struct{}{}
	parked := p.parked.Add(1)
	p.metrics.parked.Inc()
	return s.keys[key] <= p.perKey && parked <= int64(p.total), true
}

func (p *parking) leave(s *shard, key holdfast.SessionKey, pl *place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys[key]--; s.keys[key] == 0 {
		delete(s.keys, key)
	}
	delete(s.places, pl)
	p.parked.Add(-1)
	p.metrics.parked.Dec()
}

// close ends all waiting requests, and every later one, with errStopping.
func (p *parking) close() {
	for i := range p.shards {
		s := &p.shards[i]
		s.mu.Lock()
		s.closed = true
		for pl := range s.places {
			pl.cancel(errStopping)
		}
		s.mu.Unlock()
	}
}
