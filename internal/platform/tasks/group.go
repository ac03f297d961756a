package tasks

import (
	"context"
	"errors"
	"sync"
)

// ErrOpen is returned by Open for a group that is open already.
var ErrOpen = errors.New("already running")

// Group is the goroutines that a component starts beside its Run. The zero value is
// a closed group. Its methods may be called from any goroutine.
type Group struct {
	mu      sync.Mutex
	ctx     context.Context // nil while the group is closed
	running sync.WaitGroup
}

// Open lets Go start goroutines, with ctx as their context. It returns ErrOpen where
// the group is open.
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

// Go runs f in a new goroutine. It reports false, and does not run f, where the
// group is closed.
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

// Seal lets no goroutine start any more. An owner with a lock of its own calls it
// with that lock held, so that what it decides by Context under the lock stays true.
func (g *Group) Seal() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ctx = nil
}

// Close seals the group and waits until all goroutines have returned. It does not
// end their context: the caller of Open does.
func (g *Group) Close() {
	g.Seal()
	g.running.Wait()
}
