package dashboard

import (
	"context"
	"errors"
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

// readState returns a read of the fleet's state. If a read fails, its result is the
// last good state with the error.
func readState(s Source) func(ctx context.Context) (*state, error) {
	var last *state
	return func(ctx context.Context) (*state, error) {
		nodes, err1 := s.Nodes(ctx)
		sessions, err2 := s.Sessions(ctx)
		next := &state{at: time.Now(), nodes: nodes, sessions: sessions, err: errors.Join(err1, err2)}
		if next.err != nil && last != nil {
			next = &state{at: last.at, nodes: last.nodes, sessions: last.sessions, err: next.err}
		}
		last = next
		return next, nil
	}
}

// state returns the fleet's current state.
func (d *Dashboard) state(ctx context.Context) *state {
	st, _ := d.states.get(ctx) // the state has the error
	return st
}

// now is the time from which ages are counted: the time of the read, so that the same
// state gives the same page, or the real time if the read failed.
func (s *state) now() time.Time {
	if s.err != nil {
		return time.Now()
	}
	return s.at
}
