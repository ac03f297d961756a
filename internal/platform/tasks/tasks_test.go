package tasks

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"testing"
)

func TestServicesStopInReverseOrder(t *testing.T) {
	s := NewStack()
	var ended []string
	for _, name := range []string{"a", "b", "c"} {
		s.Start(name, func(ctx context.Context) error {
			<-ctx.Done()
			ended = append(ended, name) // one at a time: the next is stopped after this one has returned
			return ctx.Err()
		})
	}
	if err := s.Stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	if want := []string{"c", "b", "a"}; !slices.Equal(ended, want) {
		t.Errorf("ended in order %v, want %v", ended, want)
	}
}

func TestFailureOfAServiceIsReportedOnce(t *testing.T) {
	broken := errors.New("broken")
	s := NewStack()
	s.Start("good", func(ctx context.Context) error { <-ctx.Done(); return nil })
	s.Start("bad", func(context.Context) error { return broken })
	if err := <-s.Failed(); !errors.Is(err, broken) {
		t.Errorf("failed: %v", err)
	}
	if err := s.Stop(); err != nil { // the error has been reported by Failed
		t.Errorf("stop: %v", err)
	}

	s = NewStack()
	s.Start("bad", func(context.Context) error { return broken })
	for len(s.failed) == 0 {
		runtime.Gosched()
	}
	if err := s.Stop(); !errors.Is(err, broken) {
		t.Errorf("stop, without a receiver on Failed: %v", err)
	}
}

func TestForkSharesFailures(t *testing.T) {
	broken := errors.New("broken")
	s := NewStack()
	front := s.Fork()
	front.Start("bad", func(context.Context) error { return broken })
	if err := <-s.Failed(); !errors.Is(err, broken) {
		t.Errorf("failed: %v", err)
	}
	if err := front.StopInBackground()(); err != nil {
		t.Errorf("stop: %v", err)
	}
}

func TestGroupStartsNothingWhileItIsClosed(t *testing.T) {
	var g Group
	if g.Go(func(context.Context) {}) || g.Context() != nil {
		t.Error("a goroutine started before Open")
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := g.Open(ctx); err != nil {
		t.Fatal(err)
	}
	if err := g.Open(ctx); !errors.Is(err, ErrOpen) {
		t.Errorf("a second Open: %v", err)
	}
	ended := false
	if !g.Go(func(ctx context.Context) { <-ctx.Done(); ended = true }) {
		t.Error("no goroutine started while the group was open")
	}
	cancel()
	g.Close()
	if !ended {
		t.Error("Close returned before the goroutine")
	}
	if g.Go(func(context.Context) {}) {
		t.Error("a goroutine started after Close")
	}
	if err := g.Open(t.Context()); err != nil {
		t.Errorf("Open after Close: %v", err)
	}
	g.Close()
}
