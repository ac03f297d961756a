package session

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/sessions/kill"
)

// Adopted is the result of Adopt.
type Adopted struct {
	Sessions int // running containers that were taken over
	Orphans  int // containers without a matching record, killed
	Stuck    int // containers not seen dead; Run continues to try
	Released int // records without a container that were released, or will be by Run after their snapshot
}

// Adopt takes over what an earlier agent of this node left, before Run. Running
// containers with a record in state ready continue as they are. Containers without a
// matching record are killed, seen dead and removed. Records without a container are
// released. A container that cannot be seen dead blocks its own key and no other. If
// the engine cannot report on one container, although it can on others, the container
// counts as one without a matching record.
//
// An error means that the engine or the store did not answer at all; running
// containers are left alone. The exception is a lost lease: if LeaseLost is called
// meanwhile, or ctx is cancelled with the cause ErrLeaseLost, Adopt kills everything
// that it found and returns ErrLeaseLost. It may then be called again.
func (m *Manager) Adopt(ctx context.Context) (Adopted, error) {
	ctx, done := m.beginAdoption(ctx)
	defer done()
	var a Adopted
	containers, err := m.listOwn(ctx)
	if err != nil {
		err = fmt.Errorf("listing this node's containers: %w", err)
	} else {
		a, err = m.adopt(ctx, containers)
	}
	if errors.Is(context.Cause(ctx), ErrLeaseLost) {
		m.killFound(containers)
		return Adopted{}, errors.Join(ErrLeaseLost, err)
	}
	if err != nil {
		m.dropAdopted()
	}
	return a, err
}

func (m *Manager) adopt(ctx context.Context, containers []engine.Container) (Adopted, error) {
	var a Adopted
	owners, err := m.owned(ctx)
	if err != nil {
		return a, fmt.Errorf("reading this node's sessions: %w", err)
	}
	keys := map[string]holdfast.SessionKey{} // containers that must not run, by id
	for _, o := range owners {
		if o.ContainerID != "" {
			keys[o.ContainerID] = o.Key
		}
	}
	taken, err := m.takeOverAll(ctx, containers, owners)
	if err != nil {
		return a, err
	}
	m.reportEarlier(ctx, containers, taken, owners)
	for _, id := range m.deps.Deadman.Unconfirmed() {
		if _, known := keys[id]; !known {
			keys[id] = ""
		}
	}
	for _, c := range containers {
		key := holdfast.SessionKey(c.Labels[LabelSession])
		if taken[c.ID] {
			delete(owners, keys[c.ID])
			delete(keys, c.ID)
			a.Sessions++
			continue
		}
		if c.Labels[LabelWarm] != "" {
			key = keys[c.ID] // key of the record that names it; "" if no known record does
		}
		m.log.Warn("container without a session", "container", c.Name, "state", c.State)
		a.Orphans++
		keys[c.ID] = key
	}
	left := m.killOrphans(ctx, slices.Collect(maps.Keys(keys)))
	if ctx.Err() != nil {
		return a, context.Cause(ctx)
	}
	a.Stuck = m.keepStuck(left, keys, owners)
	// Every container of the remaining records is now dead.
	rest := slices.Collect(maps.Values(owners))
	a.Released = len(rest)
	if rest, err = m.suspendInterrupted(ctx, rest); err != nil {
		return a, err
	}
	later, now := m.dueForSnapshot(rest)
	if len(now) > 0 {
		if err := m.giveUp(ctx, now); err != nil {
			return a, fmt.Errorf("giving up sessions without a container: %w", err)
		}
	}
	m.keepForSnapshot(later)
	return a, nil
}

// keepStuck keeps an entry for each container that was not seen dead, and removes
// their records from owners. Each blocks its own key. A container that only the
// deadman knows may belong to any record without a container id. keepStuck returns the
// number of containers.
func (m *Manager) keepStuck(left map[string]error, keys map[string]holdfast.SessionKey, owners map[holdfast.SessionKey]holdfast.Owner) int {
	byKey := map[holdfast.SessionKey][]string{}
	for id, err := range left {
		m.log.Error("a container of an earlier agent is not seen dead; its session stays owned, and this is tried again", "session", keys[id], "container", short(id), "err", err)
		if err := m.deps.Deadman.Expect(id); err != nil { // otherwise the deadman would forget it
			m.log.Error("announcing a container that is not seen dead to the deadman", "container", short(id), "err", err)
		}
		byKey[keys[id]] = append(byKey[keys[id]], id)
	}
	if nameless := byKey[""]; len(nameless) > 0 {
		for key, o := range owners {
			if o.ContainerID == "" {
				byKey[key] = append(byKey[key], nameless...)
				delete(byKey, "")
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, ids := range byKey {
		o, ok := owners[key]
		if !ok {
			o = holdfast.Owner{Key: key}
		}
		delete(owners, key)
		m.keepStuckLocked(o, ids)
	}
	return len(left)
}

// listOwn returns this node's containers in any state, without those of another store.
func (m *Manager) listOwn(ctx context.Context) ([]engine.Container, error) {
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	list, err := m.deps.Engine.List(ctx, map[string]string{LabelNode: string(m.cfg.Node)})
	return m.ours(list), err
}

// owned returns this node's records, by key.
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

// Info is the public state of a session.
type Info struct {
	Owner       holdfast.Owner // with the phases of its boot, once it is ready
	Connections int
	IdleSince   time.Time       // zero while a client is connected or waits for a command
	Sleep       *holdfast.Sleep // nil: it never sleeps, and was not resumed
	WakeCron    time.Time       // next time of its template; the zero time: none
	Error       string          // why it did not boot, or cannot be ended
}

// List returns the sessions of this node in no particular order.
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

// Inside is the container of a ready session, for work on it from outside.
type Inside struct {
	PID  int             // of its init
	Left <-chan struct{} // closed when the session begins to end
	// Same reports whether the init still lives, so that PID is its pid.
	Same func() bool
	// Container is its id. Dir is the directory of this host that may be mounted at
	// IdentityDir.
	Container, Dir string
}

// Inside returns the container of a session. holdfast.ErrNotFound if the session is not
// ready.
func (m *Manager) Inside(key holdfast.SessionKey) (Inside, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.sessions[key]
	if e == nil {
		return Inside{}, fmt.Errorf("session %s: %w", key, holdfast.ErrNotFound)
	}
	if e.phase != ready || e.target == nil {
		return Inside{}, fmt.Errorf("session %s has no running container: %w", key, holdfast.ErrNotFound)
	}
	return Inside{PID: e.target.Init().Pid(), Left: e.left, Container: e.owner.ContainerID, Dir: m.identityDir(e.owner), Same: func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return e.phase == ready && !e.target.Init().Exited()
	}}, nil
}

// Owner returns the record of one session of this node, as Get does.
func (m *Manager) Owner(key holdfast.SessionKey) (holdfast.Owner, bool) {
	i, err := m.Get(key)
	return i.Owner, err == nil
}

func (e *entry) infoLocked(node holdfast.NodeID) Info {
	i := Info{Owner: e.owner, Connections: e.conns}
	if e.conns == 0 && e.execs == 0 {
		i.IdleSince = e.idleSince
	}
	if e.sleeper != nil && e.sleeper.container != nil {
		state := e.sleeper.state
		i.Sleep = &state
	} else if e.wokenBy != "" {
		i.Sleep = &holdfast.Sleep{WokenAt: e.owner.ReadyAt, WokenBy: e.wokenBy}
	}
	i.WakeCron = e.cron
	i.Owner.Key, i.Owner.Node, i.Owner.Template = e.key, node, e.template.Name
	switch e.phase {
	case ready:
		if e.owner.Memory == holdfast.Saving { // by an earlier agent
			i.Owner.Memory = ""
		}
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
		if len(e.stuckContainers) > 0 {
			i.Error += ": " + names(e.stuckContainers)
		}
	}
	return i
}

// adoption is a running Adopt.
type adoption struct {
	cancel context.CancelCauseFunc
	done   chan struct{} // closed at its end
}

// beginAdoption returns a context that LeaseLost cancels.
func (m *Manager) beginAdoption(ctx context.Context) (context.Context, func()) {
	a := &adoption{done: make(chan struct{})}
	ctx, a.cancel = context.WithCancelCause(ctx)
	m.mu.Lock()
	m.adoption = a
	m.mu.Unlock()
	return ctx, func() {
		a.cancel(nil)
		m.mu.Lock()
		m.adoption = nil
		m.mu.Unlock()
		close(a.done)
	}
}

// abortAdoption ends a running Adopt and waits until it has killed what it found.
func (m *Manager) abortAdoption(ctx context.Context) {
	m.mu.Lock()
	a := m.adoption
	m.mu.Unlock()
	if a == nil {
		return
	}
	a.cancel(ErrLeaseLost)
	select {
	case <-a.done:
	case <-ctx.Done():
	}
}

// killFound kills what an Adopt found. It starts with the containers whose init is
// already open, because they die at once, and then asks the engine about the others.
func (m *Manager) killFound(found []engine.Container) {
	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	m.mu.Lock()
	held := m.markLocked(fenced, slices.Collect(maps.Values(m.sessions))...)
	m.mu.Unlock()
	var dead []string
	if len(held) > 0 {
		report := m.deps.Killer.Kill(ctx, targets(held))
		m.deps.Metrics.killed(report)
		dead = report.Dead
		m.deps.Deadman.Forget(dead...)
		for _, e := range held {
			if slices.Contains(dead, e.target.ID) {
				m.reportEnds([]*entry{e})
				m.deps.Watcher.Remove(e.target)
				m.dropNetwork(e)
			}
		}
	}
	m.dropAdopted()
	var err error
	if found == nil { // the list was not reached
		found, err = m.listOwn(ctx)
	}
	if err = errors.Join(err, notDead(m.killOrphans(ctx, without(found, dead)))); err != nil {
		m.log.Error("the lease was lost while taking over: not everything is seen dead", "err", err)
	}
}

// dropAdopted forgets everything that an Adopt has taken over and leaves it running.
func (m *Manager) dropAdopted() {
	m.mu.Lock()
	held := slices.Collect(maps.Values(m.sessions))
	m.detached = nil
	m.mu.Unlock()
	for _, e := range held {
		m.close(e)
	}
}

// without returns the ids of the containers except the listed ones.
func without(list []engine.Container, but []string) (ids []string) {
	for _, c := range list {
		if !slices.Contains(but, c.ID) {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// targets returns the entries' targets.
func targets(entries []*entry) []*kill.Target {
	out := make([]*kill.Target, len(entries))
	for i, e := range entries {
		out[i] = e.target
	}
	return out
}
