package guardian

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/boottime"
	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/sessions/kill"
)

// DefaultPauseCap is how long an engine is stopped at the most.
const DefaultPauseCap = time.Second

// Engine stops a container engine while containers die: the daemon, its
// containerd and the shims of those containers. It is a kill.Pauser. Its
// methods may be called from any goroutine; one Quiet at a time goes on, others
// are refused meanwhile.
type Engine struct {
	Guardian *Guardian
	Socket   string        // path of the engine's unix socket
	Cap      time.Duration // 0 is DefaultPauseCap
	Log      *slog.Logger
	// Observe is told each step as it begins; nil is nobody.
	Observe func(step string)

	mu      sync.Mutex
	busy    bool
	daemons []*pidfd.Process // found once, good as long as they live
}

// The steps of quieting, in their order, as Observe is told.
const (
	StepFind     = "quiet.find"     // look for the engine's processes
	StepArm      = "quiet.arm"      // hand the undo to the guardian
	StepStop     = "quiet.stop"     // SIGSTOP to each; told before the first and after each
	StepStopped  = "quiet.stopped"  // all are
	StepContinue = "quiet.continue" // SIGCONT to each; told before the first and after each
	StepDisarm   = "quiet.disarm"   // tell the guardian
)

func (e *Engine) observe(step string) {
	if e.Observe != nil {
		e.Observe(step)
	}
}

// Find looks for the engine's processes ahead of time, so that Quiet does not
// have to.
func (e *Engine) Find(targets ...*kill.Target) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, err := e.find(targets)
	return err
}

// Quiet implements kill.Pauser.
func (e *Engine) Pause(_ context.Context, targets []*kill.Target) (kill.PausedEngine, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.busy {
		return nil, errors.New("another kill has it stopped")
	}
	e.observe(StepFind)
	daemons, err := e.find(targets)
	if err != nil {
		return nil, err
	}
	// The targets may be closed before the engine goes on.
	shims, err := shimsOf(targets)
	if err != nil {
		return nil, err
	}
	// The daemons first: they are what wakes the shims.
	all := append(append([]*pidfd.Process(nil), daemons...), shims...)
	e.observe(StepArm)
	limit := e.Cap
	if limit <= 0 {
		limit = DefaultPauseCap
	}
	armed, err := e.Guardian.Arm(Plan{
		Name:     "stopping the container engine",
		Deadline: boottime.Now().Add(limit),
		Undo:     []Undo{{Kind: Continue, Processes: all}},
	})
	if err != nil {
		release(shims)
		return nil, err
	}
	e.busy = true
	s := &pausedEngine{engine: e, armed: armed, processes: all, shims: shims}
	e.observe(StepStop)
	for _, p := range all {
		if err := p.Signal(unix.SIGSTOP); err != nil && !errors.Is(err, pidfd.ErrGone) {
			return nil, errors.Join(fmt.Errorf("stop the engine: %w", err), s.resume())
		}
		e.observe(StepStop)
	}
	// Where this process stood still for long, what the guardian continued was
	// stopped again only now.
	if err := armed.Check(); err != nil {
		return nil, errors.Join(fmt.Errorf("stop the engine: %w", err), s.resume())
	}
	e.observe(StepStopped)
	return s, nil
}

// shimsOf are handles of our own on the living shims of the targets, each once:
// containers of one pod share a shim.
func shimsOf(targets []*kill.Target) ([]*pidfd.Process, error) {
	seen := make(map[int]bool, len(targets))
	var shims []*pidfd.Process
	for _, t := range targets {
		s := t.Shim()
		if s == nil || seen[s.Pid()] {
			continue
		}
		seen[s.Pid()] = true
		own, err := s.Dup()
		switch {
		case errors.Is(err, os.ErrClosed): // its container is dead
		case err != nil:
			release(shims)
			return nil, err
		default:
			shims = append(shims, own)
		}
	}
	return shims, nil
}

// Close lets go of the engine's processes.
func (e *Engine) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	release(e.daemons)
	e.daemons = nil
}

// pausedEngine is a stopped engine.
type pausedEngine struct {
	engine    *Engine
	armed     *Armed
	processes []*pidfd.Process
	shims     []*pidfd.Process // those of them that are ours to close
}

// Release implements kill.PausedEngine.
func (s *pausedEngine) Release(t *kill.Target) error {
	if t.Shim() == nil {
		return nil
	}
	if err := t.Shim().Signal(unix.SIGCONT); err != nil && !errors.Is(err, pidfd.ErrGone) {
		return err
	}
	return nil
}

// Resume implements kill.PausedEngine.
func (s *pausedEngine) Resume() error {
	s.engine.mu.Lock()
	defer s.engine.mu.Unlock()
	return s.resume()
}

func (s *pausedEngine) resume() error {
	e := s.engine
	defer release(s.shims)
	e.observe(StepContinue)
	var err error
	for _, p := range s.processes {
		if failed := p.Signal(unix.SIGCONT); !errors.Is(failed, pidfd.ErrGone) {
			err = errors.Join(err, failed)
		}
		e.observe(StepContinue)
	}
	e.busy = false
	e.observe(StepDisarm)
	if err != nil { // it has handles of its own
		return errors.Join(err, s.armed.CarryOut())
	}
	return s.armed.Disarm()
}
