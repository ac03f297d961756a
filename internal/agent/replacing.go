package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/sessions/fleet"
)

// moves has sessions come up again, on another node where there is one that
// takes them: killed, seen dead, given up, and started.
type moves struct{ a *Agent }

func (m moves) Owner(ctx context.Context, key holdfast.SessionKey) (holdfast.Owner, error) {
	return m.a.store.Get(ctx, key)
}

func (m moves) Replace(ctx context.Context, key holdfast.SessionKey, down func()) (holdfast.Owner, error) {
	o, err := m.a.store.Get(ctx, key)
	if err != nil {
		return holdfast.Owner{}, err
	}
	if m.a.fleet == nil && m.a.sessions.Draining() {
		// It could not come up again.
		return holdfast.Owner{}, fmt.Errorf("node %s: %w", m.a.node, holdfast.ErrDraining)
	}
	if err := m.end(ctx, o, down); err != nil {
		return holdfast.Owner{}, err
	}
	return m.a.start(ctx, key, o.Template)
}

// end ends the session where it is. It calls down when that begins, as near as it
// can: another node does not say when it has told the successor.
func (m moves) end(ctx context.Context, o holdfast.Owner, down func()) error {
	var (
		report holdfast.KillReport
		err    error
	)
	if o.Node == m.a.node {
		report, err = m.a.move(ctx, o.Key, down)
	} else {
		down()
		report, err = m.endAt(ctx, o)
	}
	if err != nil && !errors.Is(err, holdfast.ErrNotFound) { // else it ended by itself
		return err
	}
	if len(report.Left) > 0 {
		return fmt.Errorf("container %s could not be killed: %s", report.Left[0].Name, report.Left[0].Reason)
	}
	return nil
}

func (m moves) endAt(ctx context.Context, o holdfast.Owner) (holdfast.KillReport, error) {
	if m.a.peers == nil {
		return holdfast.KillReport{}, &holdfast.ElsewhereError{Owner: o}
	}
	c, err := m.a.clientOf(o.Node)
	if err != nil {
		return holdfast.KillReport{}, err
	}
	defer c.Close()
	r, err := c.MoveSession(ctx, o.Key, api.MoveRequest{})
	return r.KillReport, err
}

// longestTelling is how long a successor may take to get ready. It holds up
// nobody: the session goes on meanwhile.
const longestTelling = 10 * time.Second

// move ends a session of this node that is to come up elsewhere, where another
// node takes it.
func (a *Agent) move(ctx context.Context, key holdfast.SessionKey, down func()) (holdfast.KillReport, error) {
	// One that boots is let finish: who waits for it would get an error. Why
	// it did not, if so, is theirs to hear.
	if _, release, err := a.sessions.Join(ctx, key); err == nil {
		release()
	} else if ctx.Err() != nil {
		return holdfast.KillReport{}, err
	}
	i, err := a.sessions.Get(key)
	if err != nil {
		return holdfast.KillReport{}, err
	}
	if a.fleet != nil && i.Owner.State == holdfast.Ready {
		telling, cancel := context.WithTimeout(ctx, longestTelling)
		a.fleet.Prepare(telling, []fleet.Departing{{Owner: i.Owner, Connected: i.Connections > 0}})
		cancel()
	}
	down()
	return a.sessions.Stop(ctx, key)
}

// start has a session started, here or elsewhere, and returns its record.
func (a *Agent) start(ctx context.Context, key holdfast.SessionKey, template string) (holdfast.Owner, error) {
	if a.fleet == nil {
		i, err := a.sessions.Start(ctx, key, template)
		return i.Owner, err
	}
	if _, err := a.fleet.Start(ctx, key, template); err != nil {
		return holdfast.Owner{}, err
	}
	return a.store.Get(ctx, key)
}
