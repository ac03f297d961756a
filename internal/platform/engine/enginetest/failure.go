package enginetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// calls has every method of Engine that returns an error, called for the container
// id.
func (s *suite) calls(t *testing.T, id string) map[string]func(context.Context) error {
	e := s.Engine
	return map[string]func(context.Context) error{
		"Ping":        e.Ping,
		"Info":        func(ctx context.Context) error { _, err := e.Info(ctx); return err },
		"ImageID":     func(ctx context.Context) error { _, err := e.ImageID(ctx, s.Image); return err },
		"ImageDigest": func(ctx context.Context) error { _, err := e.ImageDigest(ctx, s.Image); return err },
		"Create": func(ctx context.Context) error {
			made, err := e.Create(ctx, s.spec())
			if err == nil {
				err = e.Remove(ctx, made)
			}
			return err
		},
		"Start":   func(ctx context.Context) error { return e.Start(ctx, id) },
		"Wait":    func(ctx context.Context) error { _, err := e.Wait(ctx, id); return err },
		"Inspect": func(ctx context.Context) error { _, err := e.Inspect(ctx, id); return err },
		"List":    func(ctx context.Context) error { _, err := e.List(ctx, nil); return err },
		"Logs":    func(ctx context.Context) error { return e.Logs(ctx, id, engine.LogOptions{}, io.Discard) },
		"Exec": func(ctx context.Context) error {
			_, err := e.Exec(ctx, id, engine.Exec{Command: []string{"true"}})
			return err
		},
		"Kill":             func(ctx context.Context) error { return e.Kill(ctx, id) },
		"Remove":           func(ctx context.Context) error { return e.Remove(ctx, id) },
		"SetRestartPolicy": func(ctx context.Context) error { return e.SetRestartPolicy(ctx, id, engine.RestartNo) },
		"Pull": func(ctx context.Context) error {
			var last error
			// Nothing listens on that port.
			for _, err := range e.Pull(ctx, "127.0.0.1:1/no/such:image", engine.PullOptions{}) {
				last = err
			}
			return last
		},
	}
}

// cancelled calls everything with a context that is done.
func (s *suite) cancelled(t *testing.T) {
	id := s.start(t, s.spec())
	for name, call := range s.calls(t, id) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		within(t, name, func() {
			if err := call(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", name, err)
			}
		})
		within(t, "Watch", func() {
			for ev := range s.Engine.Watch(ctx, engine.WatchOptions{}) {
				t.Errorf("an event of a cancelled watch: %+v", ev)
			}
		})
	}
	if !s.inspect(t, id).Running() {
		t.Error("a cancelled call had an effect")
	}
}

// down calls everything while the daemon is stopped.
func (s *suite) down(t *testing.T) {
	id := s.start(t, s.spec())
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	for name, call := range s.calls(t, id) {
		err := call(s.context(t))
		if !errors.Is(err, holdfast.ErrEngine) {
			t.Errorf("%s: %v", name, err)
		}
		if holdfast.HintOf(err) == "" {
			t.Errorf("%s: no hint with %v", name, err)
		}
	}
	if err := s.Start(s.context(t)); err != nil {
		t.Fatal(err)
	}
	if !s.inspect(t, id).Running() {
		t.Error("the container did not outlive its daemon")
	}
}

// killAndSee ends a process with SIGKILL and waits until it is gone.
func killAndSee(t *testing.T, pid int) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); ; {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); errors.Is(err, os.ErrNotExist) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d does not die", pid)
		}
		time.Sleep(time.Millisecond)
	}
}
