package agent

import (
	"context"
	"fmt"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/sessions/fleet"
)

// What a single move leaves of its time for killing and giving up.
const (
	moveReserve = 20 * time.Second
	longestMove = 5 * time.Minute // where the caller gives no deadline
)

// handOver has a session of this node go on on another one, on the named one or, for
// "", on one that takes it. Where none does, the session stays as it is.
func (a *Agent) handOver(ctx context.Context, key holdfast.SessionKey, to holdfast.NodeID) (holdfast.MoveReport, error) {
	if a.fleet == nil {
		return holdfast.MoveReport{}, refused("docs/fleet.md says how nodes become a fleet", "this node has no others to move session %s to", key)
	}
	if to == a.node {
		return holdfast.MoveReport{}, refused("name another node; holdfast node ls lists them", "session %s is on node %s already", key, to)
	}
	// One that boots is let finish.
	if _, release, err := a.sessions.Join(ctx, key); err == nil {
		release()
	} else if ctx.Err() != nil {
		return holdfast.MoveReport{}, err
	}
	i, err := a.sessions.Get(key)
	if err != nil {
		return holdfast.MoveReport{}, err
	}
	if i.Owner.State != holdfast.Ready {
		return holdfast.MoveReport{}, fmt.Errorf("session %s is %s: %w", key, i.Owner.State, holdfast.ErrBusy)
	}
	telling, cancel := context.WithTimeout(ctx, longestTelling)
	defer cancel()
	successor, err := a.fleet.PrepareOne(telling, fleet.Departing{Owner: i.Owner, Connected: i.Connections > 0}, to)
	if err != nil {
		return holdfast.MoveReport{}, err
	}
	defer a.fleet.ClearSuccessor(key, i.Owner.Epoch)
	until, ok := ctx.Deadline()
	if !ok {
		until = time.Now().Add(longestMove)
	}
	r, err := a.sessions.Move(ctx, key, until.Add(-min(moveReserve, time.Until(until)/4)))
	r.To = successor
	return r, err
}

// refused is a request that cannot be carried out.
func refused(hint, format string, args ...any) error {
	return &api.Error{Code: api.CodeBadRequest, Message: fmt.Sprintf(format, args...), Advice: hint}
}
