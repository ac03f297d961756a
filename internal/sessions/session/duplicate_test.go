package session

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/platform/linux/boottime"
	"holdfast/internal/platform/store"
	"holdfast/test/memstore"
	"holdfast/test/poll"
)

// meeting is a store in which two agents both find no duplicate node before either of
// them writes.
type meeting struct {
	store.Store
	both *sync.WaitGroup
	once *sync.Once
}

func (s meeting) Grant(ctx context.Context, ttl time.Duration) (store.LeaseID, time.Duration, error) {
	s.once.Do(func() { s.both.Done(); s.both.Wait() })
	return s.Store.Grant(ctx, ttl)
}

// If two hosts with one id start at the same time, one of them gets the id.
func TestTwinsThatStartTogether(t *testing.T) {
	mem := memstore.New(100)
	var both sync.WaitGroup
	both.Add(2)
	errs := make(chan error, 2)
	for range 2 {
		cfg := quick(t)
		cfg.TTL, cfg.Fence, cfg.KillBudget = time.Second, 500*time.Millisecond, 200*time.Millisecond
		l := NewLease(cfg, meeting{mem, &both, &sync.Once{}}, testLog(t))
		go func() {
			err := l.Hold(t.Context())
			for ; err == nil && t.Context().Err() == nil; time.Sleep(cfg.Renew) { // the winner lives
				if mem.KeepAlive(t.Context(), l.held.Load().ID) != nil {
					break
				}
				select {
				case errs <- nil:
				default:
				}
			}
			if err != nil {
				errs <- err
			}
		}()
	}
	var won, refused bool
	for !won || !refused {
		switch err := <-errs; {
		case err == nil:
			won = true
		case errors.Is(err, ErrDuplicateNode) && !refused:
			refused = true
		default:
			t.Fatal(err)
		}
	}
}

// An agent that later finds its node's record under another lease kills all its
// containers and stops.
func TestTwinThatComesLater(t *testing.T) {
	mem := memstore.New(100)
	l := NewLease(quick(t), takenStore{mem}, testLog(t))
	if err := l.Hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	var lost atomic.Int32
	err := l.Run(t.Context(), func() holdfast.Node { return holdfast.Node{ID: "a", Address: "192.0.2.7:7070"} }, func(context.Context) {
		lost.Add(1)
		if id := l.ID(); id != 0 {
			t.Errorf("claims continue under lease %d", id)
		}
	})
	if !errors.Is(err, ErrDuplicateNode) || lost.Load() != 1 {
		t.Errorf("beside a duplicate node: %v, lost was called %d times", err, lost.Load())
	}
}

// takenStore accepts the first record of a node and refuses all others.
type takenStore struct{ store.Store }

func (s takenStore) PutNode(ctx context.Context, n holdfast.Node, id store.LeaseID) error {
	if !n.Draining {
		return store.ErrNodeTaken
	}
	return s.Store.PutNode(ctx, n, id)
}

// If a lease is gone, the agent neither takes another one nor sends a deadline until
// everything under the old one was seen dead.
func TestGoneLeaseIsNotReplacedBeforeAllIsDead(t *testing.T) {
	cfg, mem := quick(t), memstore.New(100)
	cfg.TTL, cfg.Fence, cfg.KillBudget = 2*time.Second, time.Second, 200*time.Millisecond
	var dead atomic.Bool
	var early atomic.Int32
	cfg.Deadline = func(boottime.Instant) {
		if !dead.Load() {
			early.Add(1)
		}
	}
	l := NewLease(cfg, mem, testLog(t))
	if err := l.Hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	old := l.ID()
	if err := mem.Revoke(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	early.Store(0)
	begun := time.Now()
	var calls atomic.Int32
	runLease(t, l, func(ctx context.Context) {
		if time.Since(begun) > 2*cfg.TTL { // longer than one call takes
			dead.Store(true)
		}
		if !dead.Load() {
			calls.Add(1)
			<-ctx.Done()
		}
	})
	poll.Until(t, "the node has another lease", func() bool { id := l.ID(); return id != 0 && id != old })
	if !dead.Load() || early.Load() > 0 || calls.Load() < 2 {
		t.Errorf("dead %v, %d deadlines were sent before, lost was called %d times", dead.Load(), early.Load(), calls.Load())
	}
}

// In a store that no other node uses, a node gets its lease back even if the lease was
// not kept. No other node can have its id, and its record would block it for a day.
func TestOwnStoreGivesTheLeaseBack(t *testing.T) {
	mem, cfg := memstore.New(100), quick(t)
	cfg.Fence, cfg.KillBudget, cfg.TTL = 0, 0, time.Hour
	first := NewLease(cfg, mem, testLog(t))
	if err := first.Hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(cfg.File); err != nil {
		t.Fatal(err)
	}
	second := NewLease(cfg, mem, testLog(t))
	if err := second.Hold(t.Context()); err != nil || second.ID() != first.ID() {
		t.Errorf("lease %d, not %d: %v", second.ID(), first.ID(), err)
	}
}
