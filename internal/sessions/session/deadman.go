package session

import (
	"fmt"

	"holdfast/internal/sessions/kill"
)

// Deadman is told of every container before it can run, so that it can kill what
// this process cannot any more. Its methods are called from many goroutines.
type Deadman interface {
	// Expect announces a container before it is started. An error fails the
	// boot: nothing may run that nobody could kill.
	Expect(containerID string) error
	// Hold hands over the handle on a container's init, once that is known,
	// also of an adopted container. An error is logged, and tried again by
	// whoever implements it.
	Hold(t *kill.Target) error
	// Forget ends both, for containers that were seen dead or removed
	// unstarted.
	Forget(containerIDs ...string)
	// Unconfirmed are the ids of the containers that an earlier agent told of, and
	// that were neither held, expected nor forgotten since.
	Unconfirmed() []string
}

func (m *Manager) expect(id string) error {
	if m.deps.Deadman == nil {
		return nil
	}
	if err := m.deps.Deadman.Expect(id); err != nil {
		return fmt.Errorf("announcing the container to the deadman: %w", err)
	}
	return nil
}

func (m *Manager) hold(t *kill.Target) {
	if m.deps.Deadman == nil {
		return
	}
	if err := m.deps.Deadman.Hold(t); err != nil {
		m.log.Error("handing a container to the deadman", "session", t.Key, "container", short(t.ID), "err", err)
	}
}

func (m *Manager) forget(ids ...string) {
	if m.deps.Deadman != nil && len(ids) > 0 {
		m.deps.Deadman.Forget(ids...)
	}
}

// unconfirmed are the containers that an earlier agent told the deadman of and this one
// has not taken over.
func (m *Manager) unconfirmed() []string {
	if m.deps.Deadman == nil {
		return nil
	}
	return m.deps.Deadman.Unconfirmed()
}
