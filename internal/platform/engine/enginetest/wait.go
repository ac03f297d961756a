package enginetest

import (
	"context"
	"errors"
	"testing"

	"holdfast"
)

func (s *suite) wait(t *testing.T) {
	for script, want := range map[string]int{"exit 0": 0, "exit 42": 42, "kill -9 $$; exit 3": 3} { // pid 1 cannot kill itself
		id := s.start(t, s.spec("sh", "-c", script))
		for range 2 { // the second asks of one that has ended
			if code, err := s.Engine.Wait(s.context(t), id); err != nil || code != want {
				t.Errorf("%s: exit code %d, %v", script, code, err)
			}
		}
	}

	id := s.start(t, s.spec("sh", "-c", "while [ ! -e /go ]; do sleep 0.01; done; exit 7"))
	type end struct {
		code int
		err  error
	}
	ended := make(chan end, 1)
	go func() {
		code, err := s.Engine.Wait(s.context(t), id)
		ended <- end{code, err}
	}()
	ctx, cancel := context.WithCancel(s.context(t))
	off := make(chan error, 1)
	go func() { _, err := s.Engine.Wait(ctx, id); off <- err }()
	cancel()
	if err := <-off; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	s.letGo(t, id)
	within(t, "the end of a container", func() {
		if e := <-ended; e.err != nil || e.code != 7 {
			t.Errorf("exit code %d, %v", e.code, e.err)
		}
	})

	killed := s.start(t, s.spec())
	if err := s.Engine.Kill(s.context(t), killed); err != nil {
		t.Fatal(err)
	}
	if code, err := s.Engine.Wait(s.context(t), killed); err != nil || code != 137 {
		t.Errorf("of a killed one: exit code %d, %v", code, err)
	}
	if code, err := s.Engine.Wait(s.context(t), s.create(t, s.spec())); err == nil || errors.Is(err, holdfast.ErrEngine) {
		t.Errorf("of one that was never started: exit code %d, %v", code, err)
	}
}

// waitOverCrash: Wait returns an error when the engine stops, and can be called again.
func (s *suite) waitOverCrash(t *testing.T) {
	id := s.start(t, s.spec())
	waited := make(chan error, 1)
	ctx := s.context(t)
	go func() { _, err := s.Engine.Wait(ctx, id); waited <- err }()
	if err := s.Crash(); err != nil {
		t.Fatal(err)
	}
	within(t, "waiting for a container of an engine that crashed", func() {
		if err := <-waited; !errors.Is(err, holdfast.ErrEngine) {
			t.Errorf("the engine crashed: %v", err)
		}
	})
	if err := s.Start(s.context(t)); err != nil {
		t.Fatal(err)
	}
	if err := s.Engine.Kill(s.context(t), id); err != nil {
		t.Fatal(err)
	}
	if code, err := s.Engine.Wait(s.context(t), id); err != nil || code != 137 {
		t.Errorf("after it: exit code %d, %v", code, err)
	}
}
