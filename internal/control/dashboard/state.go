package dashboard

import (
	"context"
	"errors"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
)

// loadLimit bounds one reading of the Source.
const loadLimit = 5 * time.Second

// state is what was known at one moment. Nobody changes one.
type state struct {
	at       time.Time
	nodes    []holdfast.Node // by id
	sessions []api.Session   // by key
	err      error           // why it is not newer; at is then when it was good
}

// cache reads the Source for all pages: once for those that ask about the same
// time.
type cache struct {
	source Source
	fresh  time.Duration // how old a state may be that is shown

	mu   sync.Mutex
	read time.Time // when last tried
	cur  *state    // nil: not read yet
}

// get returns a state that is fresh, or an older one with an error.
func (c *cache) get(ctx context.Context) *state {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cur != nil && time.Since(c.read) < c.fresh {
		return c.cur
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadLimit)
	defer cancel()
	nodes, err1 := c.source.Nodes(ctx)
	sessions, err2 := c.source.Sessions(ctx)
	c.read = time.Now()
	next := &state{at: c.read, nodes: nodes, sessions: sessions, err: errors.Join(err1, err2)}
	if next.err != nil && c.cur != nil {
		next = &state{at: c.cur.at, nodes: c.cur.nodes, sessions: c.cur.sessions, err: next.err}
	}
	c.cur = next
	return next
}

// drop makes the next get read anew.
func (c *cache) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read = time.Time{}
}

// now is the moment that ages are counted from: that of the reading, so that the
// same state makes the same page, and the real one where that failed.
func (s *state) now() time.Time {
	if s.err != nil {
		return time.Now()
	}
	return s.at
}
