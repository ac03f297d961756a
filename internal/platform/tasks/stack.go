package tasks

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Stack is a sequence of services. Stop ends them in the reverse order of Start.
// Its methods are for one goroutine, except Failed, which any goroutine may use.
type Stack struct {
	running []service
	failed  chan error // the error of the first service that ended by itself
}

type service struct {
	name   string
	cancel context.CancelFunc
	done   chan error
}

// NewStack returns an empty Stack.
func NewStack() *Stack { return &Stack{failed: make(chan error, 1)} }

// Fork returns an empty Stack that reports failures on the same channel as s. The
// two are stopped independently.
func (s *Stack) Fork() *Stack { return &Stack{failed: s.failed} }

// Start runs f in a new goroutine until f returns or the service is stopped, which
// ends f's context. name becomes part of f's error.
func (s *Stack) Start(name string, f func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	x := service{name: name, cancel: cancel, done: make(chan error, 1)}
	s.running = append(s.running, x)
	go func() {
		err := f(ctx)
		if err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
		if err != nil && ctx.Err() == nil {
			select {
			case s.failed <- err:
				err = nil // reported
			default: // another service failed first
			}
		}
		x.done <- err
	}()
}

// Failed delivers the error of the first service that ended with an error before it
// was stopped. Later failures are returned by Stop.
func (s *Stack) Failed() <-chan error { return s.failed }

// Stop ends the services from the last to the first, and waits for each before it
// ends the one before. It returns their errors, except context.Canceled and the
// error that was received from Failed.
func (s *Stack) Stop() error {
	var errs []error
	for i := len(s.running) - 1; i >= 0; i-- {
		x := s.running[i]
		x.cancel()
		if err := <-x.done; err != nil && !errors.Is(err, context.Canceled) {
			errs = append(errs, err)
		}
	}
	s.running = nil
	select {
	case err := <-s.failed:
		errs = append(errs, err)
	default:
	}
	return errors.Join(errs...)
}

// StopInBackground empties s and stops its services in a goroutine. wait returns
// what Stop would have returned; it may be called once.
func (s *Stack) StopInBackground() (wait func() error) {
	detached := &Stack{running: s.running, failed: make(chan error, 1)}
	s.running = nil
	done := make(chan error, 1)
	go func() { done <- detached.Stop() }()
	return func() error { return <-done }
}

// Every calls f at once and then once per interval, until ctx is done. It returns
// nil.
func Every(ctx context.Context, interval time.Duration, f func()) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		f()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// EveryTick is Every at the times of Tick.
func EveryTick(ctx context.Context, interval time.Duration, f func()) error {
	for {
		f()
		select {
		case <-Tick(interval):
		case <-ctx.Done():
			return nil
		}
	}
}

// Tick returns a channel that receives at the next multiple of interval on the clock. Loops
// of one interval, and of its multiples, then wake at the same moment, and a process at rest
// wakes once for all of them: each wake-up costs more than what most loops do. Hosts with the
// same time wake together, so a loop that calls a service of the fleet uses Every.
func Tick(interval time.Duration) <-chan time.Time {
	now := time.Now()
	return time.After(now.Truncate(interval).Add(interval).Sub(now))
}

// Sleep waits for d. If ctx is done first, it returns the error of ctx.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
