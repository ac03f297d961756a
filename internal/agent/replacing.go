package agent

import (
	"context"
	"fmt"

	"holdfast"
)

// moves has this node's sessions replaced: killed, seen dead, given up, and
// started again. It has no way to another node's sessions.
type moves struct{ a *Agent }

func (m moves) Owner(ctx context.Context, key holdfast.SessionKey) (holdfast.Owner, error) {
	return m.a.store.Get(ctx, key)
}

func (m moves) Replace(ctx context.Context, key holdfast.SessionKey, down func()) (holdfast.Owner, error) {
	o, err := m.a.store.Get(ctx, key)
	if err != nil {
		return holdfast.Owner{}, err
	}
	if o.Node != m.a.node {
		return holdfast.Owner{}, &holdfast.ElsewhereError{Owner: o}
	}
	if m.a.sessions.Draining() {
		// It could not come up again.
		return holdfast.Owner{}, fmt.Errorf("node %s: %w", m.a.node, holdfast.ErrDraining)
	}
	down()
	report, err := m.a.sessions.Stop(ctx, key)
	if err != nil {
		return holdfast.Owner{}, err
	}
	if len(report.Left) > 0 {
		return holdfast.Owner{}, fmt.Errorf("container %s could not be killed: %s", report.Left[0].Name, report.Left[0].Reason)
	}
	info, err := m.a.sessions.Start(ctx, key, o.Template)
	return info.Owner, err
}
