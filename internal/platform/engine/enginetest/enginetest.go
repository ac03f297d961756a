// Package enginetest is the suite that every implementation of engine.Engine
// passes against a real engine.
package enginetest

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/platform/engine"
)

// Setup describes an engine under test. No other client uses it during the suite, and
// the suite leaves no container behind.
type Setup struct {
	Engine engine.Engine
	// Image is present on the engine's host. It has busybox's commands on PATH, and
	// its own command runs until it is killed.
	Image string
	// Stop ends the engine's daemon without its containers, Start starts it again,
	// and Crash kills it.
	Stop, Crash func() error
	Start       func(context.Context) error
}

// patience is how long the suite waits for an event: a bound against hanging, not an
// expectation.
const patience = time.Minute

// label is a label of every container of the suite.
const label = "holdfast.enginetest"

// suite is one run.
type suite struct {
	Setup
	names atomic.Int64
}

// Run runs the suite.
func Run(t *testing.T, s Setup) {
	r := &suite{Setup: s}
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"Info", r.info},
		{"ImageID", r.imageID},
		{"Life", r.life},
		{"CreateErrors", r.createErrors},
		{"StartErrors", r.startErrors},
		{"UnknownContainer", r.unknownContainer},
		{"Limits", r.limits},
		{"NoLimits", r.noLimits},
		{"Privileges", r.privileges},
		{"Seccomp", r.seccomp},
		{"NoCapabilities", r.noCapabilities},
		{"Users", r.users},
		{"Mounts", r.mounts},
		{"Networks", r.networks},
		{"PIDModes", r.pidModes},
		{"List", r.list},
		{"Wait", r.wait},
		{"WaitOverCrash", r.waitOverCrash},
		{"Kill", r.kill},
		{"Remove", r.remove},
		{"RestartPolicy", r.restartPolicy},
		{"Concurrent", r.concurrent},
		{"Logs", r.logs},
		{"LogsFollow", r.logsFollow},
		{"Exec", r.exec},
		{"ExecErrors", r.execErrors},
		{"ExecTTY", r.execTTY},
		{"ExecCancel", r.execCancel},
		{"ExecSignal", r.execSignal},
		{"Events", r.events},
		{"EventsBreak", r.eventsBreak},
		{"EventsMissNothing", r.eventsMissNothing},
		{"EventsOverRestart", r.eventsOverRestart},
		{"Watch", r.watches},
		{"WatchOverRestart", r.watchOverRestart},
		{"Load", r.load},
		{"Pull", r.pull},
		{"PullErrors", r.pullErrors},
		{"PullPlatform", r.pullPlatform},
		{"PullStopped", r.pullStopped},
		{"PullCrash", r.pullCrash},
		{"Cancelled", r.cancelled},
		{"Down", r.down},
	} {
		t.Run(test.name, test.run)
	}
}

// context returns a context with a deadline, against an engine that hangs.
func (s *suite) context(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// spec describes a container with a new name. It runs command or, without one, until
// it is killed.
func (s *suite) spec(command ...string) engine.Spec {
	return engine.Spec{
		Name:    fmt.Sprintf("enginetest-%d", s.names.Add(1)),
		Image:   s.Image,
		Command: command,
		Labels:  map[string]string{label: "yes"},
	}
}

// create makes a container that is removed when the test ends.
func (s *suite) create(t *testing.T, spec engine.Spec) string {
	t.Helper()
	id, err := s.Engine.Create(s.context(t), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Engine.Remove(ctx, id); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	return id
}

// start creates and starts a container.
func (s *suite) start(t *testing.T, spec engine.Spec) string {
	t.Helper()
	id := s.create(t, spec)
	if err := s.Engine.Start(s.context(t), id); err != nil {
		t.Fatal(err)
	}
	return id
}

func (s *suite) inspect(t *testing.T, id string) engine.Container {
	t.Helper()
	c, err := s.Engine.Inspect(s.context(t), id)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// shell runs a script in a container and returns what it writes, without the
// space around it.
func (s *suite) shell(t *testing.T, id, script string) string {
	t.Helper()
	var out, errs bytes.Buffer
	code, err := s.Engine.Exec(s.context(t), id, engine.Exec{
		Command: []string{"sh", "-c", script}, Stdout: &out, Stderr: &errs,
	})
	if err != nil || code != 0 {
		t.Fatalf("%s: code %d, %v: %s", script, code, err, errs.String())
	}
	return strings.TrimSpace(out.String())
}

// letGo makes the file /go, for which the first process of a container waits before it ends. Its end
// kills all processes of the container, so the file is made after the command of Exec has ended.
func (s *suite) letGo(t *testing.T, id string) {
	t.Helper()
	s.shell(t, id, "(while kill -0 $$; do sleep 0.01; done; touch /go) >/dev/null 2>&1 &")
}

// waitExit waits until a container does not run and returns its state.
func (s *suite) waitExit(t *testing.T, id string) engine.Container {
	t.Helper()
	return s.waitFor(t, id, func(c engine.Container) bool { return c.State == "exited" })
}

// waitFor inspects a container until good.
func (s *suite) waitFor(t *testing.T, id string, good func(engine.Container) bool) engine.Container {
	t.Helper()
	ctx := s.context(t)
	for {
		c, err := s.Engine.Inspect(ctx, id)
		if err != nil {
			t.Fatalf("wait for container %s: %v", id, err)
		}
		if good(c) {
			return c
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// within fails the test when f has not returned after patience.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%s: does not return", what)
	}
}
