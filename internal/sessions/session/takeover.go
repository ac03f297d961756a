package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/kill"
)

// adoptTime bounds one engine call about a container that may be taken over. askTime
// bounds the retries for containers that the engine could not report on.
const (
	adoptTime = 10 * time.Second
	askTime   = 30 * time.Second
)

// errUnclear means that the engine answers but does not report the state of a
// container.
var errUnclear = errors.New("the engine does not report the state of the session's container")

// takeOverAll takes over the containers that run as their records say, and returns
// their ids. An error means that the engine or the kernel does not answer; nothing may
// be killed for that reason.
func (m *Manager) takeOverAll(ctx context.Context, containers []engine.Container, owners map[holdfast.SessionKey]holdfast.Owner) (map[string]bool, error) {
	taken := map[string]bool{}
	var unclear []holdfast.Owner
	byContainer := map[string]holdfast.Owner{}
	for _, o := range owners {
		byContainer[o.ContainerID] = o
	}
	for _, c := range containers {
		o, ok := byContainer[c.ID]
		if !ok || o.State != holdfast.Ready {
			continue
		}
		var err error
		taken[c.ID], err = m.takeOver(ctx, o)
		if errors.Is(err, errUnclear) {
			unclear = append(unclear, o)
		} else if err != nil {
			return taken, fmt.Errorf("taking session %s over: %w", o.Key, err)
		}
	}
	asking, cancel := context.WithTimeout(ctx, m.askTime)
	defer cancel()
	for _, o := range unclear {
		var err error
		if taken[o.ContainerID], err = m.askAgain(ctx, asking, o); err != nil {
			return taken, fmt.Errorf("taking session %s over: %w", o.Key, err)
		}
	}
	return taken, nil
}

// askAgain retries takeOver until asking is done, for a container that the engine
// could not report on. After that the container is not taken over.
func (m *Manager) askAgain(ctx, asking context.Context, o holdfast.Owner) (bool, error) {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		if _, err := m.listOwn(ctx); err != nil {
			return false, err
		}
		_ = tasks.Sleep(asking, pause)
		taken, err := m.takeOver(asking, o)
		switch {
		case err == nil:
			return taken, nil
		case ctx.Err() != nil:
			return false, ctx.Err()
		case asking.Err() != nil:
			m.log.Error("a session's container cannot be taken over; killing it", "session", o.Key, "container", short(o.ContainerID), "err", err)
			return false, nil
		case !errors.Is(err, errUnclear):
			return false, err
		}
	}
}

// takeOver makes the record's container a ready session again, if the container runs.
// An error means that this is not known: errUnclear if the engine may still report on
// other containers.
func (m *Manager) takeOver(ctx context.Context, o holdfast.Owner) (bool, error) {
	limited, cancel := context.WithTimeout(ctx, adoptTime)
	defer cancel()
	c, err := m.deps.Engine.Inspect(limited, o.ContainerID)
	switch {
	case err == nil || errors.Is(err, holdfast.ErrNotFound):
	case ctx.Err() != nil || errors.Is(err, holdfast.ErrEngine):
		return false, err
	default:
		return false, fmt.Errorf("%w: %w", errUnclear, err)
	}
	if err != nil || !c.Running() || !belongsTo(c, o) {
		return false, nil
	}
	target, err := m.deps.Opener.Open(c.ID, c.Name, c.Pid)
	if errors.Is(err, kill.ErrGone) || errors.Is(err, kill.ErrStranger) || errors.Is(err, kill.ErrProtected) {
		return false, nil // nothing could kill it by that pid
	}
	if err != nil {
		return false, err
	}
	target.Key = o.Key
	m.hold(target)
	e := newEntry(o.Key, m.templateOf(c, o))
	e.detached = m.deps.Commands != nil // the commands of an earlier agent go on
	m.mu.Lock()
	defer m.mu.Unlock()
	if e.network = m.networkOf(c); e.network.IsValid() {
		m.deps.Networks.Adopt(e.network)
	}
	m.enterLocked(e, o, target)
	close(e.settled)
	m.sessions[o.Key] = e
	m.watchLocked(e)
	return true, nil
}

// templateOf returns the template of a container that an earlier agent has created: the
// present one of its name, as far as it says how the session is served and ended. The
// container and its network stay as they were created.
func (m *Manager) templateOf(c engine.Container, o holdfast.Owner) Template {
	t, err := m.template(o.Template)
	if err != nil { // it is no longer configured
		t = Template{Name: o.Template}
	}
	if t.Network = c.Network; c.Labels[engine.LabelAddress] != "" {
		t.Network = "" // of its own, joined by way of a holder
	}
	return t
}

// belongsTo reports whether a container belongs to the record: it was created for the
// record's claim, or it was warm before that claim. A warm container belongs only to
// the claim that names it.
func belongsTo(c engine.Container, o holdfast.Owner) bool {
	if c.Labels[LabelWarm] != "" {
		return c.Labels[LabelTemplate] == o.Template
	}
	return epochOf(c) == o.Epoch && c.Labels[LabelSession] == string(o.Key)
}
