package session

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/uts"
	"holdfast/internal/sessions/kill"
)

// Networks are ready networks, each held by a container that does nothing else.
// Their methods may be called from any goroutine.
type Networks interface {
	// Take gives a network to a session, for good, whose container is to see
	// itself by that host name. The target is the container that holds it, and
	// is not the caller's to close. false where none is ready: it does not wait.
	Take(hostname string) (*kill.Target, bool)
	// Adopt is Take for the network that an adopted session has, by its
	// holder's id. holdfast.ErrNotFound where that does not run.
	Adopt(ctx context.Context, id string) (*kill.Target, error)
	// Drop ends a network when the session's container is dead, or will not be.
	// It does not wait.
	Drop(id string)
}

// joins is how the network mode begins of a container that joins another's.
const joins = "container:"

// takeNetwork has the session's own container join a ready network, if the
// template wants one and there is one. Without one it gets its own from the engine,
// which takes longer.
func (b *attempt) takeNetwork(spec *engine.Spec) {
	if !b.e.template.Pooled || b.m.deps.Networks == nil {
		return
	}
	holder, ok := b.m.deps.Networks.Take(spec.Hostname)
	if !ok {
		return
	}
	b.m.mu.Lock()
	b.e.holder = holder
	b.m.mu.Unlock()
	// The engine gives it the holder's host name. Programs that go by the
	// variable have the right one from the start; the rest is nameIt's.
	spec.Env = append([]string{"HOSTNAME=" + spec.Hostname}, spec.Env...)
	spec.Network, spec.Hostname = joins+holder.ID, ""
}

// setHostname gives a container that runs the host name that the engine could not give
// it: it joined a network, or was there before its session.
func (b *attempt) setHostname() {
	err := uts.SetHostname(b.target.Pid(), string(b.e.key))
	if err != nil && !b.target.Init().Exited() {
		b.m.log.Warn("a session's container has another host name than its key", "session", b.e.key, "err", err)
	}
}

// dropNetwork ends the network of an entry that nothing runs of.
func (m *Manager) dropNetwork(e *entry) {
	m.mu.Lock()
	holder := e.holder
	e.holder = nil
	m.mu.Unlock()
	if holder != nil {
		m.deps.Networks.Drop(holder.ID)
	}
}

// adoptNetwork takes over what holds the network of a container that runs: nil
// where the network is its own. ok is false where it is lost, and so the container
// to nobody's use.
func (m *Manager) adoptNetwork(ctx context.Context, c engine.Container) (holder *kill.Target, ok bool, err error) {
	id, joined := strings.CutPrefix(c.Network, joins)
	if !joined || m.deps.Networks == nil {
		return nil, true, nil
	}
	holder, err = m.deps.Networks.Adopt(ctx, id)
	switch {
	case err == nil:
		return holder, true, nil
	case errors.Is(err, holdfast.ErrNotFound) || errors.Is(err, kill.ErrStranger) || errors.Is(err, kill.ErrProtected):
		m.log.Warn("a session's container has lost its network", "container", c.Name, "err", err)
		return nil, false, nil
	case ctx.Err() != nil || errors.Is(err, holdfast.ErrEngine):
		return nil, false, err
	}
	return nil, false, fmt.Errorf("%w: %w", errUnclear, err)
}

// networkLost reports whether the session's network has gone with who held it.
func (e *entry) networkLost() bool { return e.holder != nil && e.holder.Init().Exited() }
