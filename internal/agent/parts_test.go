package agent

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"testing"
)

func TestPartsStopInReverseOrder(t *testing.T) {
	p := newParts()
	var ended []string
	for _, name := range []string{"a", "b", "c"} {
		p.start(name, func(ctx context.Context) error {
			<-ctx.Done()
			ended = append(ended, name) // one at a time: the next is stopped when this one has ended
			return ctx.Err()
		})
	}
	if err := p.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	if want := []string{"c", "b", "a"}; !slices.Equal(ended, want) {
		t.Errorf("ended in order %v, want %v", ended, want)
	}
}

func TestPartThatFailsIsTold(t *testing.T) {
	broken := errors.New("broken")
	p := newParts()
	p.start("good", func(ctx context.Context) error { <-ctx.Done(); return nil })
	p.start("bad", func(context.Context) error { return broken })
	if err := <-p.failed; !errors.Is(err, broken) {
		t.Errorf("failed: %v", err)
	}
	if err := p.stop(); err != nil { // else a person would read it twice
		t.Errorf("stop: %v", err)
	}

	p = newParts()
	p.start("bad", func(context.Context) error { return broken })
	for len(p.failed) == 0 {
		runtime.Gosched()
	}
	if err := p.stop(); !errors.Is(err, broken) {
		t.Errorf("stop where nobody has asked: %v", err)
	}
}
