package tasks

import (
	"context"
	"errors"
	"sync"
)

// ErrOpen is returned by Open for a group that is open already.
var ErrOpen = errors.New("already running")

// Group holds the goroutines that a component starts while its Run is active. The zero
// value is a closed group. Its methods may be called from any goroutine.
type Group struct {
	mu      sync.Mutex
	ctx     context.Context // nil while the group is closed
	running sync.WaitGroup
}

// Open opens the group: Go starts goroutines with the context ctx. It returns ErrOpen
// if the group is open already.
func (g *Group) Open(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctx != nil {
		return ErrOpen
	}
	g.ctx = ctx
	return nil
}

// Context is the context of an open group, and nil for a closed one.
func (g *Group) Context() context.Context {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ctx
}

// Go runs f in a new goroutine. If the group is closed, it does not run f and returns
// false.
func (g *Group) Go(f func(context.Context)) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctx == nil {
		return false
	}
	ctx := g.ctx
	g.running.Go(func() { f(ctx) })
	return true
}

// Seal closes the group for new goroutines and does not wait for those that run. An
// owner with its own lock calls Seal with that lock held. What Context returns under
// the lock then stays valid.
func (g *Group) Seal() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ctx = nil
}

// Close seals the group and waits until all goroutines have returned. It does not
// cancel their context; the caller of Open does.
func (g *Group) Close() {
	g.Seal()
	g.running.Wait()
}
