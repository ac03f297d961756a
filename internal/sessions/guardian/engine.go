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

// DefaultPauseCap is the longest time that an engine stays stopped.
const DefaultPauseCap = time.Second

// Engine stops a container engine while containers die: the daemon, its containerd
// and the shims of those containers. It implements kill.Pauser. Its methods may be
// called from any goroutine. One Pause at a time is possible; a second one fails.
type Engine struct {
	Guardian *Guardian
	Socket   string        // path of the engine's unix socket
	Cap      time.Duration // 0 is DefaultPauseCap
	Log      *slog.Logger
	// Observe, if not nil, is called with each step as it begins.
	Observe func(step string)

	mu      sync.Mutex
	busy    bool
	daemons []*pidfd.Process // found once, good as long as they live
}

// The steps of a pause, in their order, as Observe gets them.
const (
	StepFind     = "pause.find"     // look for the engine's processes
	StepArm      = "pause.arm"      // hand the undo to the guardian
	StepStop     = "pause.stop"     // SIGSTOP to each process; observed before the first and after each
	StepStopped  = "pause.stopped"  // all processes are stopped
	StepContinue = "pause.continue" // SIGCONT to each process; observed before the first and after each
	StepDisarm   = "pause.disarm"   // tell the guardian
)

func (e *Engine) observe(step string) {
	if e.Observe != nil {
		e.Observe(step)
	}
}

// Find looks for the engine's processes ahead of time, which makes Pause faster.
func (e *Engine) Find(targets ...*kill.Target) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, err := e.find(targets)
	return err
}

// Pause implements kill.Pauser.
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
	// The daemons first, because they wake the shims.
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
	// If this process was itself stopped for long, the guardian may have continued
	// the engine before these SIGSTOPs.
	if err := armed.Check(); err != nil {
		return nil, errors.Join(fmt.Errorf("stop the engine: %w", err), s.resume())
	}
	e.observe(StepStopped)
	return s, nil
}

// shimsOf returns separate handles on the living shims of the targets, each once:
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

// Close closes the handles on the engine's processes.
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
	shims     []*pidfd.Process // the shims' handles, which Resume closes
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
	if err != nil { // the guardian has handles of its own
		return errors.Join(err, s.armed.CarryOut())
	}
	return s.armed.Disarm()
}
