package replace

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
	"holdfast/internal/sessions/fleet"
	"holdfast/internal/sessions/session"
)

const (
	// prepareLimit is how long a successor may take to get ready. The session serves
	// meanwhile.
	prepareLimit = 10 * time.Second
	// handoverReserve is the part of a handover's time that is kept for killing the
	// container and releasing the session.
	handoverReserve = 20 * time.Second
	// handoverLimit is used if the caller gives no deadline.
	handoverLimit = 5 * time.Minute
)

// Sessions ends single sessions and starts them again, on another node if one accepts
// them. It implements Fleet.
type Sessions struct {
	Node    holdfast.NodeID
	Store   store.Store
	Manager *session.Manager // of this node
	Fleet   *fleet.Fleet     // nil: this node has no others
	// EndAt ends a session of another node. That node informs the successor first.
	EndAt func(ctx context.Context, o holdfast.Owner) (holdfast.KillReport, error)
}

// Owner implements Fleet.
func (s *Sessions) Owner(ctx context.Context, key holdfast.SessionKey) (holdfast.Owner, error) {
	return s.Store.Get(ctx, key)
}

// Replace implements Fleet.
func (s *Sessions) Replace(ctx context.Context, key holdfast.SessionKey, down func()) (holdfast.Owner, error) {
	o, err := s.Store.Get(ctx, key)
	if err != nil {
		return holdfast.Owner{}, err
	}
	if s.Fleet == nil && s.Manager.Draining() {
		// The session could not start again.
		return holdfast.Owner{}, fmt.Errorf("node %s: %w", s.Node, holdfast.ErrDraining)
	}
	if err := s.end(ctx, o, down); err != nil {
		return holdfast.Owner{}, err
	}
	return s.Start(ctx, key, o.Template)
}

// end ends the session on the node that owns it. It calls down when that begins. For
// another node it calls down before the request, because that node does not report
// when it has told the successor.
func (s *Sessions) end(ctx context.Context, o holdfast.Owner, down func()) error {
	var (
		report holdfast.KillReport
		err    error
	)
	if o.Node == s.Node {
		report, err = s.End(ctx, o.Key, down)
	} else {
		down()
		report, err = s.EndAt(ctx, o)
	}
	if err != nil && !errors.Is(err, holdfast.ErrNotFound) { // ErrNotFound: the session ended by itself
		return err
	}
	if len(report.Left) > 0 {
		return fmt.Errorf("container %s could not be killed: %s", report.Left[0].Name, report.Left[0].Reason)
	}
	return nil
}

// End ends a session of this node that is to start again, on another node if one accepts
// it. It calls down when the session stops being ready.
func (s *Sessions) End(ctx context.Context, key holdfast.SessionKey, down func()) (holdfast.KillReport, error) {
	i, err := s.settled(ctx, key)
	if err != nil {
		return holdfast.KillReport{}, err
	}
	if s.Fleet != nil && i.Owner.State == holdfast.Ready {
		preparing, cancel := context.WithTimeout(ctx, prepareLimit)
		s.Fleet.Prepare(preparing, []fleet.Departing{fleet.DepartingOf(i.Owner, i.Connections > 0)})
		cancel()
	}
	down()
	return s.Manager.Replace(ctx, key)
}

// settled returns a session of this node after its boot has ended: ending it during
// the boot would return an error to the clients that wait. The error of the boot is
// theirs.
func (s *Sessions) settled(ctx context.Context, key holdfast.SessionKey) (session.Info, error) {
	if _, release, err := s.Manager.Join(ctx, key); err == nil {
		release()
	} else if ctx.Err() != nil {
		return session.Info{}, err
	}
	return s.Manager.Get(key)
}

// Start starts a session, on this node or on another one, and returns its record.
func (s *Sessions) Start(ctx context.Context, key holdfast.SessionKey, template string) (holdfast.Owner, error) {
	if s.Fleet == nil {
		i, err := s.Manager.Start(ctx, key, template)
		return i.Owner, err
	}
	return s.Fleet.Start(ctx, key, template)
}

// HandOver moves a session of this node to the node to, or, for "", to a node that
// accepts it. If no node accepts it, the session stays as it is. Fleet must not be nil.
func (s *Sessions) HandOver(ctx context.Context, key holdfast.SessionKey, to holdfast.NodeID) (holdfast.MoveReport, error) {
	i, err := s.settled(ctx, key)
	if err != nil {
		return holdfast.MoveReport{}, err
	}
	if i.Owner.State != holdfast.Ready {
		return holdfast.MoveReport{}, fmt.Errorf("session %s is %s: %w", key, i.Owner.State, holdfast.ErrBusy)
	}
	preparing, cancel := context.WithTimeout(ctx, prepareLimit)
	defer cancel()
	successor, err := s.Fleet.PrepareOne(preparing, fleet.DepartingOf(i.Owner, i.Connections > 0), to)
	if err != nil {
		return holdfast.MoveReport{}, err
	}
	defer s.Fleet.ClearSuccessor(key, i.Owner.Epoch)
	until, ok := ctx.Deadline()
	if !ok {
		until = time.Now().Add(handoverLimit)
	}
	r, err := s.Manager.Move(ctx, key, until.Add(-min(handoverReserve, time.Until(until)/4)))
	r.To = successor
	return r, err
}
