// Package unit protects the restarts of a systemd service that anything begins: an
// operator with systemctl, a package's upgrade, or a tool. It needs no change of the
// service's own unit (docs/adr/protected-units.md).
//
// Two helper units wait beside the service. systemd stops one before the service when
// the service is stopped or restarted, and reloads the other before the service is
// reloaded. Each then starts a third unit, whose process holds the connections. That
// process is not in the service's control group, so the restart does not end it.
package unit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	bus "github.com/godbus/dbus/v5"

	"holdfast"
)

// Manager is a connection to systemd, the first process of the host. Its methods may be
// called from any goroutine.
type Manager struct{ conn *dbus.Conn }

// callLimit bounds a call to systemd.
const callLimit = 10 * time.Second

// Connect connects to systemd itself; no D-Bus daemon is needed. The caller closes the
// Manager. It needs root.
func Connect(ctx context.Context) (*Manager, error) {
	c, err := dbus.NewSystemdConnectionContext(ctx)
	if err != nil {
		return nil, holdfast.WithHint(fmt.Errorf("connect to systemd: %w", err),
			"protected units need systemd as the first process; elsewhere run `holdfast protect -- COMMAND`")
	}
	return &Manager{c}, nil
}

// Close closes the connection.
func (m *Manager) Close() { m.conn.Close() }

// FullName returns the name of a unit with its type: a service if it has none.
func FullName(name string) string {
	if !strings.Contains(name, ".") {
		name += ".service"
	}
	return name
}

// ErrNoUnit reports that systemd has no such service.
var ErrNoUnit = errors.New("there is no such service")

// Loaded returns the service's own name, without aliases. Error: ErrNoUnit.
func (m *Manager) Loaded(ctx context.Context, name string) (string, error) {
	name = FullName(name)
	if !strings.HasSuffix(name, ".service") {
		return "", holdfast.WithHint(fmt.Errorf("%s is not a service", name), "name the service that listens")
	}
	if err := valid(name); err != nil {
		return "", err
	}
	state, err := m.text(ctx, name, "LoadState")
	if err != nil {
		return "", err
	}
	if state != "loaded" {
		return "", holdfast.WithHint(fmt.Errorf("%s: %w (%s)", name, ErrNoUnit, state), "`systemctl list-units --type=service` shows the services")
	}
	return m.text(ctx, name, "Id")
}

// valid refuses what cannot be the name of a unit (systemd.unit(5)). The name becomes
// part of a path.
func valid(name string) error {
	odd := strings.ContainsFunc(name, func(r rune) bool {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune(`:-_.\@`, r):
			return false
		}
		return true
	})
	if odd || len(name) > 200 || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "@") || strings.HasSuffix(name, "@.service") {
		return holdfast.WithHint(fmt.Errorf("%q is not the name of a service", name), "`systemctl list-units --type=service` shows the services")
	}
	return nil
}

// Active returns the service's state: active, activating, failed and so on, and the id of
// its current job; 0: none.
func (m *Manager) Active(ctx context.Context, name string) (state string, job uint32, err error) {
	if state, err = m.text(ctx, name, "ActiveState"); err != nil {
		return "", 0, err
	}
	v, err := m.property(ctx, name, "Job")
	if err != nil {
		return "", 0, err
	}
	pair, ok := v.([]any)
	if !ok || len(pair) == 0 {
		return "", 0, fmt.Errorf("systemd says that the job of %s is %v", name, v)
	}
	job, _ = pair[0].(uint32)
	return state, job, nil
}

// job is a job of systemd. The zero value is none.
type job struct {
	id      uint32
	kind    string // restart, stop, reload and so on
	waiting bool   // it has not begun
}

// job returns the service's current job.
func (m *Manager) job(ctx context.Context, name string) (job, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	jobs, err := m.conn.ListJobsContext(ctx)
	if err != nil {
		return job{}, fmt.Errorf("ask systemd for its jobs: %w", err)
	}
	for _, j := range jobs {
		if j.Unit == name {
			return job{j.Id, j.JobType, j.Status == "waiting"}, nil
		}
	}
	return job{}, nil
}

func (m *Manager) text(ctx context.Context, name, property string) (string, error) {
	v, err := m.property(ctx, name, property)
	if err != nil {
		return "", err
	}
	s, ok := v.(string)
	if !ok {
		return "", fmt.Errorf("systemd says that %s of %s is %v", property, name, v)
	}
	return s, nil
}

func (m *Manager) property(ctx context.Context, name, property string) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	p, err := m.conn.GetUnitPropertyContext(ctx, name, property)
	var wrong bus.Error
	if errors.As(err, &wrong) && wrong.Name == "org.freedesktop.systemd1.NoSuchUnit" {
		return nil, fmt.Errorf("%s: %w", name, ErrNoUnit)
	}
	if err != nil {
		return nil, fmt.Errorf("ask systemd for %s of %s: %w", property, name, err)
	}
	return p.Value.Value(), nil
}

// Reload makes systemd read its files again.
func (m *Manager) Reload(ctx context.Context) error {
	if err := m.conn.ReloadContext(ctx); err != nil {
		return fmt.Errorf("make systemd read its units again: %w", err)
	}
	return nil
}

// Start starts a unit and waits until it is active. Error: it did not become active.
func (m *Manager) Start(ctx context.Context, name string) error {
	return m.wait(ctx, "start", name, m.conn.StartUnitContext)
}

// Stop stops a unit and waits for its end.
func (m *Manager) Stop(ctx context.Context, name string) error {
	return m.wait(ctx, "stop", name, m.conn.StopUnitContext)
}

// forget makes systemd forget that a unit has failed.
func (m *Manager) forget(ctx context.Context, name string) {
	_ = m.conn.ResetFailedUnitContext(ctx, name) // an error: it has not failed
}

func (m *Manager) wait(ctx context.Context, verb, name string, call func(context.Context, string, string, chan<- string) (int, error)) error {
	done := make(chan string, 1)
	if _, err := call(ctx, name, "replace", done); err != nil {
		return fmt.Errorf("%s %s: %w", verb, name, err)
	}
	select {
	case result := <-done:
		if result != "done" {
			return holdfast.WithHint(fmt.Errorf("%s %s: systemd says %s", verb, name, result), "`journalctl -u "+name+"` says why")
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s %s: %w", verb, name, context.Cause(ctx))
	}
}
