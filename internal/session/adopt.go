package session

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"holdfast"
	"holdfast/internal/engine"
	"holdfast/internal/kill"
)

// Adopted says what Adopt found.
type Adopted struct {
	Sessions int // containers taken over as they run
	Strays   int // containers without a record that fits, killed
	Released int // records without a container, given up
}

// Adopt takes over what an earlier agent of this node left: running containers
// whose record says "ready" go on as they are; containers without a record that
// fits are killed and removed; records without a container are given up. It
// comes before Run, and tries once: an error means that the engine or the store
// did not answer, and leaves what runs as it is. Only when LeaseLost is called
// meanwhile, or ctx is cancelled with the cause ErrLeaseLost, everything that
// was found is killed; the error is ErrLeaseLost then, and Adopt may be called
// again.
func (m *Manager) Adopt(ctx context.Context) (Adopted, error) {
	ctx, done := m.beginAdoption(ctx)
	defer done()
	var a Adopted
	containers, err := m.deps.Engine.List(ctx, map[string]string{LabelNode: string(m.cfg.Node)})
	if err != nil {
		err = fmt.Errorf("listing this node's containers: %w", err)
	} else {
		a, err = m.adopt(ctx, containers)
	}
	if errors.Is(context.Cause(ctx), ErrLeaseLost) {
		m.abandon(containers)
		return Adopted{}, errors.Join(ErrLeaseLost, err)
	}
	return a, err
}

func (m *Manager) adopt(ctx context.Context, containers []engine.Container) (Adopted, error) {
	var a Adopted
	owners, err := m.owned(ctx)
	if err != nil {
		return a, fmt.Errorf("reading this node's sessions: %w", err)
	}
	var strays []engine.Container
	for _, c := range containers {
		o, ok := owners[holdfast.SessionKey(c.Labels[LabelSession])]
		if ok && o.State == holdfast.Ready && o.ContainerID == c.ID {
			taken, err := m.takeOver(ctx, o)
			if err != nil {
				return a, fmt.Errorf("taking session %s over: %w", o.Key, err)
			}
			if taken {
				delete(owners, o.Key)
				a.Sessions++
				continue
			}
		}
		strays = append(strays, c)
	}
	a.Strays = len(strays)
	if err := m.killStrays(ctx, strays); err != nil {
		return a, err
	}
	// Every container that belongs to a record still here is now dead.
	rest := slices.Collect(maps.Values(owners))
	if len(rest) == 0 {
		return a, nil
	}
	a.Released = len(rest)
	m.forgetOwners(rest)
	if err := m.giveUp(ctx, rest); err != nil {
		return a, fmt.Errorf("giving up sessions without a container: %w", err)
	}
	return a, nil
}

// owned is this node's records, by key.
func (m *Manager) owned(ctx context.Context) (map[holdfast.SessionKey]holdfast.Owner, error) {
	all, _, err := m.deps.Store.List(ctx)
	if err != nil {
		return nil, err
	}
	mine := map[holdfast.SessionKey]holdfast.Owner{}
	for _, o := range all {
		if o.Node == m.cfg.Node {
			mine[o.Key] = o
		}
	}
	return mine, nil
}

// takeOver makes the record's container a ready session again, if it runs. An
// error means that this could not be found out: nothing may be killed for that.
func (m *Manager) takeOver(ctx context.Context, o holdfast.Owner) (bool, error) {
	c, err := m.deps.Engine.Inspect(ctx, o.ContainerID)
	if err != nil && !errors.Is(err, holdfast.ErrNotFound) {
		return false, err
	}
	if err != nil || !c.Running() || epochOf(c) != o.Epoch {
		return false, nil
	}
	target, err := m.deps.Opener.Open(c.ID, c.Name, c.Pid)
	if errors.Is(err, kill.ErrGone) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	target.Key = o.Key
	m.hold(target)
	// The container is what it is, whatever the template says by now.
	e := newEntry(o.Key, Template{Name: o.Template})
	m.mu.Lock()
	defer m.mu.Unlock()
	m.enterLocked(e, o, target)
	close(e.settled)
	m.sessions[o.Key] = e
	m.watchLocked(e)
	return true, nil
}

// killStrays kills containers of this node that no record wants, and sees them
// dead: those that can be got hold of, also where others cannot. Their removal is
// left to the engine's own time, but for those that were never started: the
// engine may hold an earlier agent's order to start one.
func (m *Manager) killStrays(ctx context.Context, strays []engine.Container) error {
	var live []*kill.Target
	defer func() {
		for _, t := range live {
			t.Close()
		}
	}()
	var errs []error
	for _, c := range strays {
		m.log.Warn("container without a session", "container", c.Name, "state", c.State)
		t, err := m.openStray(ctx, c.ID)
		if err != nil {
			errs = append(errs, fmt.Errorf("container %s of an earlier agent: %w", c.Name, err))
		}
		if t != nil {
			live = append(live, t)
		}
	}
	if len(live) > 0 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
		defer cancel()
		report := m.deps.Killer.Kill(ctx, live)
		m.deps.Metrics.killed(report)
		for _, left := range report.Left {
			errs = append(errs, fmt.Errorf("container %s of an earlier agent cannot be killed: %s", left.Name, left.Reason))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, c := range strays {
		m.forget(c.ID)
		m.remove(c.ID)
	}
	return nil
}

// openStray returns nil for a container that does not run and will not.
func (m *Manager) openStray(ctx context.Context, id string) (*kill.Target, error) {
	c, err := m.deps.Engine.Inspect(ctx, id)
	if errors.Is(err, holdfast.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !c.Running() {
		if ended(c) {
			return nil, nil
		}
		return nil, m.deps.Engine.Remove(ctx, id)
	}
	t, err := m.deps.Opener.Open(c.ID, c.Name, c.Pid)
	if errors.Is(err, kill.ErrGone) {
		return nil, nil
	}
	return t, err
}

// Info is a session as people see it.
type Info struct {
	Owner       holdfast.Owner // with what its boot took, once it is ready
	Connections int
	IdleSince   time.Time // zero while somebody is connected
	Error       string    // why it did not boot, or cannot be ended
}

// List returns the sessions of this node, in no order.
func (m *Manager) List() []Info {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]Info, 0, len(m.sessions))
	for _, e := range m.sessions {
		out = append(out, e.infoLocked(m.cfg.Node))
	}
	return out
}

// Get returns one session of this node. holdfast.ErrNotFound.
func (m *Manager) Get(key holdfast.SessionKey) (Info, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.sessions[key]
	if e == nil {
		return Info{}, fmt.Errorf("session %s: %w", key, holdfast.ErrNotFound)
	}
	return e.infoLocked(m.cfg.Node), nil
}

func (e *entry) infoLocked(node holdfast.NodeID) Info {
	i := Info{Owner: e.owner, Connections: e.conns}
	if e.conns == 0 {
		i.IdleSince = e.idleSince
	}
	i.Owner.Key, i.Owner.Node, i.Owner.Template = e.key, node, e.template.Name
	switch e.phase {
	case booting:
		i.Owner.State = holdfast.Starting
	case leaving, failed:
		i.Owner.State = holdfast.Leaving
	}
	if e.err != nil {
		i.Error = e.err.Error()
	}
	if e.stuck {
		i.Error = "its container cannot be seen dead"
	}
	return i
}
