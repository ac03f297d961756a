package session

import "holdfast/internal/sessions/kill"

// Deadman knows every container before the container can run, so that it can kill
// containers that this process no longer can. Many goroutines call its methods.
type Deadman interface {
	// Expect announces a container before it is started. An error fails the boot: a
	// container must not run if the deadman could not kill it.
	Expect(containerID string) error
	// Hold passes on the target of a container's init once it is known, also for an
	// adopted container. An error is logged, and the implementation retries.
	Hold(t *kill.Target) error
	// Forget ends Expect and Hold for containers that were seen dead or removed before
	// they started.
	Forget(containerIDs ...string)
	// Unconfirmed returns the ids of the containers that an earlier agent announced
	// and that were not held, expected or forgotten since.
	Unconfirmed() []string
}

// noDeadman is a Deadman that does nothing.
type noDeadman struct{}

func (noDeadman) Expect(string) error     { return nil }
func (noDeadman) Hold(*kill.Target) error { return nil }
func (noDeadman) Forget(...string)        {}
func (noDeadman) Unconfirmed() []string   { return nil }

func (m *Manager) hold(t *kill.Target) {
	if err := m.deps.Deadman.Hold(t); err != nil {
		m.log.Error("handing a container to the deadman", "session", t.Key, "container", short(t.ID), "err", err)
	}
}
