package dashboard

import (
	"context"
	"errors"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
)

// loadLimit is the time limit of one read of the Source.
const loadLimit = 5 * time.Second

// state is the fleet's state at one moment. It is never modified.
type state struct {
	at       time.Time
	nodes    []holdfast.Node // by id
	sessions []api.Session   // by key
	err      error           // why it is not newer; at is then the time of the last good read
}

// cache caches the state for all pages.
type cache struct {
	source Source
	fresh  time.Duration // maximum age of a state

	mu   sync.Mutex
	read time.Time // time of the last try
	cur  *state    // nil: not read yet
}

// get returns a fresh state, or an older one with an error.
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

// drop makes the next get read again.
func (c *cache) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read = time.Time{}
}

// now is the time from which ages are counted: the time of the read, so that the same
// state gives the same page, or the real time if the read failed.
func (s *state) now() time.Time {
	if s.err != nil {
		return time.Now()
	}
	return s.at
}
