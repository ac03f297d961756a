package handoff

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"

	"holdfast/internal/platform/linux/connfd"
	"holdfast/internal/platform/linux/listenfd"
	"holdfast/internal/platform/sdnotify"
)

// Time limits of the parts of an upgrade in which this process does not serve.
const (
	// serveLimit is how long the next agent may take from its turn to serving.
	serveLimit = time.Minute
	// notifyLimit is how long the service manager may take to learn the new main
	// process.
	notifyLimit = 5 * time.Second
	// retryInterval is between two attempts of this process to serve again.
	retryInterval = time.Second
)

// ShutdownMode says how an agent ends.
type ShutdownMode struct {
	Keep    bool // leave the containers to the next agent
	HandOff bool // the next agent follows at once, on the same sockets
	// Connections means that the next agent takes open connections over, too.
	Connections bool
}

// Agent is one agent of a Service. Run is called once.
type Agent interface {
	// Run serves until End is called or ctx is done.
	Run(ctx context.Context) error
	// End makes Run return. It reports false if an earlier call, or the end of ctx,
	// has decided how the agent ends. Any goroutine may call it.
	End(ShutdownMode) bool
	// Background is called after Run. It returns a function that waits for the
	// requests that are served beside the next agent, or nil if the agent did not
	// hand off.
	Background() (wait func() error)
	// Connections is called after Run. It returns the open connections that the agent leaves
	// to the next one, for ShutdownMode.Connections.
	Connections() []connfd.Conn
}

// Service runs the agents of one process, one after the other.
type Service struct {
	Version string
	Home    Home
	// Keep delivers a signal when the agent must end and leave its containers.
	Keep <-chan os.Signal
	// HoldLimit is how long the next agent may take to renew the node's lease; 0 is
	// serveLimit.
	HoldLimit time.Duration
	// New returns an agent that has not started anything. turn is nil for an agent
	// that does not follow another one.
	New func(turn *Turn, l *Listeners, c *Connections, u *Upgrades) Agent
	Log *slog.Logger

	listeners   *Listeners
	connections *Connections
	upgrades    *Upgrades
}

// Serve runs an agent until it ends by itself, ctx is done, or Keep delivers a
// signal. turn is this process's place after another agent, nil for none. After a
// handoff Serve returns when the next agent has served for its trial time. If the
// next agent fails before, Serve runs an agent of this process again.
func (s *Service) Serve(ctx context.Context, turn *Turn) error {
	s.connections = NewConnections(s.Log)
	defer s.connections.close()
	sockets, note, err := s.takeSockets(ctx, turn)
	if err != nil {
		return err
	}
	s.listeners = NewListeners(sockets, s.Log)
	defer s.listeners.close()
	if s.upgrades, err = NewUpgrades(s.Version, note, s.Log); err != nil {
		return err
	}
	background, err := s.runUntilHandedOff(ctx, turn)
	turn.Fail(err)
	return errors.Join(err, background())
}

// takeSockets returns the listening sockets and the note of the agent before this
// one, or the sockets of the service manager.
func (s *Service) takeSockets(ctx context.Context, turn *Turn) ([]*listenfd.Socket, []byte, error) {
	if turn != nil {
		return turn.Take(ctx, s.Version, s.Home, s.connections)
	}
	sockets, skipped, err := listenfd.FromEnvironment()
	if err != nil {
		return nil, nil, fmt.Errorf("sockets of the service manager: %w", err)
	}
	if len(skipped) > 0 {
		s.Log.Warn("the service manager passes descriptors that are not listening sockets", "names", skipped)
	}
	return sockets, nil, nil
}

// runUntilHandedOff runs agents until one has ended for good. background waits for
// the requests that it still serves.
func (s *Service) runUntilHandedOff(ctx context.Context, turn *Turn) (background func() error, err error) {
	background = func() error { return nil }
	for {
		a := s.New(turn, s.listeners, s.connections, s.upgrades)
		err := s.run(ctx, a)
		s.connections.Put(a.Connections())
		next, trial := s.upgrades.take()
		wait := a.Background()
		switch {
		case next != nil && wait != nil:
			background = wait
			if err != nil {
				s.Log.Warn("the agent ended with an error; the next one takes over", "err", err)
			}
		case next != nil: // the agent ended for another reason
			next.Kill()
			return background, err
		case s.mayServeAgain(ctx, err):
			s.Log.Error("the agent could not start again after a failed upgrade; trying again", "err", err)
			continue
		default:
			return background, err
		}
		var over *handedOff
		switch err := s.handOff(ctx, next, trial); {
		case err == nil:
			return background, nil
		case errors.As(err, &over) && over.code == 0:
			return background, nil
		case errors.As(err, &over):
			return background, err
		default:
			next.Kill()
			s.upgrades.fail(err)
			turn = nil // the agent before this one ended earlier
		}
	}
}

// run runs one agent.
func (s *Service) run(ctx context.Context, a Agent) error {
	ended := make(chan struct{})
	var listening sync.WaitGroup
	defer listening.Wait()
	defer close(ended)
	listening.Go(func() {
		select {
		case <-s.Keep:
			a.End(ShutdownMode{Keep: true})
		case <-ended:
		}
	})
	return a.Run(ctx)
}

// mayServeAgain reports, after a pause, whether this process tries again to run an
// agent. It does so if an upgrade has failed and its own agent could not start, so that
// the host is not left without an agent.
func (s *Service) mayServeAgain(ctx context.Context, err error) bool {
	if err == nil || !s.upgrades.rollingBack() {
		return false
	}
	select {
	case <-time.After(retryInterval):
		return true
	case <-s.Keep:
	case <-ctx.Done():
	}
	return false
}

// handedOff is the exit of a next agent on request: by a signal or through its API.
type handedOff struct{ code int }

func (h *handedOff) Error() string {
	return fmt.Sprintf("the next agent was told to end, and exited with code %d", h.code)
}

// ExitCode is the exit code of the next agent, which becomes this process's.
func (h *handedOff) ExitCode() int { return h.code }

// handOff lets the next agent serve. It returns nil when the next agent has passed its
// trial, and a *handedOff if the next agent has exited on request. Any other
// error means that the next agent cannot serve.
func (s *Service) handOff(ctx context.Context, next *Next, trial time.Duration) error {
	s.upgrades.Step("finish")
	note, err := s.upgrades.note()
	if err != nil {
		return err
	}
	if err := next.Go(s.listeners.list(), note); err != nil {
		return err
	}
	signaled, release := s.forward(ctx, next)
	defer release()
	hold := serveLimit
	if s.HoldLimit > 0 {
		hold = min(hold, s.HoldLimit)
	}
	for _, stage := range []struct {
		until Event
		limit time.Duration
	}{{Held, hold}, {Up, serveLimit}} {
		// Neither agent sends keep-alives meanwhile; each stage has a limit.
		sdnotify.Notify(s.Log, sdnotify.Alive)
		if err := awaitEvent(signaled, next, stage.until, stage.limit); err != nil {
			return err
		}
	}
	if err := s.passConnections(next); err != nil {
		return err
	}
	if err := awaitTrial(signaled, next, trial); err != nil {
		return err
	}
	if err := listenfd.HandOver(next.PID(), notifyLimit); err != nil {
		s.Log.Warn("the service manager may take the exit of this process for the end of the service", "err", err)
	}
	return next.Over()
}

// passConnections passes the open connections of the last agent to the next one, which
// serves. Until they are passed, this process can serve them again.
func (s *Service) passConnections(next *Next) error {
	conns := s.connections.Take()
	if err := next.Pass(conns); err != nil {
		s.connections.Put(conns)
		return err
	}
	for _, c := range conns {
		c.Close()
	}
	return nil
}

// errSignal is the cause of a wait that ends because this process gets a signal.
var errSignal = errors.New("a signal ends the agent")

// forward forwards signals to the next agent, which serves in place of this process.
// signaled is done after the first one.
func (s *Service) forward(ctx context.Context, next *Next) (signaled context.Context, release func()) {
	signaled, cancel := context.WithCancelCause(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-s.Keep:
			next.Signal(syscall.SIGUSR2)
		case <-ctx.Done():
			next.Signal(syscall.SIGTERM)
		case <-signaled.Done():
			return
		}
		cancel(errSignal)
	}()
	return signaled, func() { cancel(nil); <-ended }
}

// awaitEvent waits until the next agent reports the event.
func awaitEvent(signaled context.Context, next *Next, until Event, limit time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(signaled, limit, fmt.Errorf("the next agent did not report %q within %v", until, limit))
	defer cancel()
	for {
		e, err := next.Await(ctx)
		switch {
		case ctx.Err() != nil:
			return interrupted(ctx, next)
		case err != nil:
			return err
		case e == Ending:
			return awaitExit(next)
		case e == until:
			return nil
		}
	}
}

// awaitTrial returns nil when the next agent has served for the trial time.
func awaitTrial(signaled context.Context, next *Next, trial time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(signaled, trial, nil)
	defer cancel()
	for {
		e, err := next.Await(ctx)
		switch {
		case signaled.Err() != nil:
			return interrupted(signaled, next)
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("in its trial of %v: %w", trial, err)
		case e == Ending:
			return awaitExit(next)
		}
	}
}

// interrupted returns the error of a wait whose context has ended.
func interrupted(ctx context.Context, next *Next) error {
	if err := context.Cause(ctx); !errors.Is(err, errSignal) {
		return err
	}
	return awaitExit(next)
}

// awaitExit waits for the exit of a next agent that was told to end.
func awaitExit(next *Next) error {
	<-next.Ended()
	return &handedOff{next.ExitCode()}
}
