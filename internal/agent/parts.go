// Package agent assembles the parts: it starts them in order, stops them in the
// reverse order, and is the only place that knows them all.
package agent

import (
	"context"
	"errors"
	"fmt"
)

// parts are things that run beside each other, started in order and stopped in
// the reverse order, each only when what was started after it has ended.
type parts struct {
	running []part
	failed  chan error // the first part that ended with an error by itself
}

type part struct {
	name   string
	cancel context.CancelFunc
	done   chan error
}

func newParts() *parts { return &parts{failed: make(chan error, 1)} }

// start runs f until it returns or the part is stopped.
func (p *parts) start(name string, f func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	x := part{name: name, cancel: cancel, done: make(chan error, 1)}
	p.running = append(p.running, x)
	go func() {
		err := f(ctx)
		if err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
		if err != nil && ctx.Err() == nil {
			select {
			case p.failed <- err:
				err = nil // it is told
			default: // another one was first
			}
		}
		x.done <- err
	}()
}

// stop ends the parts from the last to the first and returns what they said, but
// for what was taken from failed.
func (p *parts) stop() error {
	var errs []error
	for i := len(p.running) - 1; i >= 0; i-- {
		x := p.running[i]
		x.cancel()
		if err := <-x.done; err != nil && !errors.Is(err, context.Canceled) {
			errs = append(errs, err)
		}
	}
	p.running = nil
	select {
	case err := <-p.failed:
		errs = append(errs, err)
	default:
	}
	return errors.Join(errs...)
}

// stopBehind is stop in a goroutine of its own; what it returns waits for that.
// The parts are that goroutine's: there is nothing left here to stop.
func (p *parts) stopBehind() (wait func() error) {
	mine := &parts{running: p.running, failed: make(chan error, 1)}
	p.running = nil
	done := make(chan error, 1)
	go func() { done <- mine.stop() }()
	return func() error { return <-done }
}
