// Package guardian undoes a risky act if its starter cannot. A guardian is a small
// process of the same binary. Before the act begins, the starter tells it how to undo
// the act and by when. The guardian undoes when its starter dies and when the
// deadline passes, and repeats the undo after the deadline. It does nothing once the
// plan is disarmed.
//
// The starter and the guardian watch each other over one socket: if the guardian dies
// first, the starter undoes. If both are killed, the next agent reads the plan from a
// file and undoes it (Recover).
//
// The protocol is JSON messages on a SOCK_SEQPACKET socketpair (unix(7)), with the
// pidfds beside them. Each side sees EOF on the socket when the other one is gone.
package guardian

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/tasks"
)

// Guardian is the starter's handle on a guardian process. Its methods may be called
// from any goroutine.
type Guardian struct {
	argv []string
	log  *slog.Logger

	mu     sync.Mutex // held through each question and its answer
	side   *side      // nil once closed
	nextID uint64
}

// Armed is a plan that a guardian has taken on. Its methods may be called from
// any goroutine.
type Armed struct {
	g    *Guardian
	side *side
	id   uint64
	plan Plan
	done chan struct{} // closed when the plan is no longer in a guardian's hands
}

// Start starts a guardian and returns when it runs. argv is a command whose
// process calls Main, usually this program's own executable and "guardian".
// The guardian outlives a SIGINT, SIGTERM or SIGHUP to its starter's session; it
// ends when its starter does, or on Close. If it is killed, Run or the next Arm starts
// another.
func Start(argv []string, log *slog.Logger) (*Guardian, error) {
	g := &Guardian{argv: argv, log: log}
	var err error
	if g.side, err = g.spawn(); err != nil {
		return nil, err
	}
	return g, nil
}

// undoHere carries out the harmless parts of a plan in the starter.
func (a *Armed) undoHere() error {
	var err error
	for _, u := range a.plan.Undo {
		if u.Kind.harmless() {
			err = errors.Join(err, part{kind: u.Kind, processes: u.Processes, limits: u.Limits}.perform())
		}
	}
	return err
}

// Arm gives the plan to the guardian and returns when the guardian has acknowledged
// that it will carry it out: only then may the risky act begin. After an error,
// ErrNoGuardian among them, nothing is armed.
func (g *Guardian) Arm(p Plan) (*Armed, error) {
	if err := p.validate(); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.ensure(); err != nil {
		return nil, err
	}
	g.nextID++
	a := &Armed{g: g, side: g.side, id: g.nextID, plan: p, done: make(chan struct{})}
	ms, fds := p.messages(a.id)
	// Registered before the question, so that the end of a guardian that dies right
	// after its answer is noticed.
	a.side.register(a)
	r, err := a.side.ask(ms, fds, cmp.Or(p.Wait, answerLimit))
	if err == nil && r.Error != "" {
		err = errors.New(r.Error)
	}
	if err != nil {
		a.side.unregister(a)
		// The guardian may have accepted the plan, and would carry it out.
		_ = a.side.process.Kill()
		return nil, fmt.Errorf("arm the guardian: %w", err)
	}
	return a, nil
}

// ensure replaces a guardian that has died.
func (g *Guardian) ensure() error {
	if g.side == nil {
		return fmt.Errorf("arm the guardian: it is closed: %w", ErrNoGuardian)
	}
	if !g.side.isGone() {
		return nil
	}
	s, err := g.spawn()
	if err != nil {
		return err
	}
	g.log.Warn("guardian: it had died; started another", "pid", s.process.Pid)
	g.side = s
	return nil
}

// Check asks whether the plan still stands. An act that begins late may begin after
// its undo; a check after the act finds that out. ErrUndone.
func (a *Armed) Check() error {
	return a.question("check", message{Op: opCheck, ID: a.id}, answerLimit)
}

// CarryOut makes the guardian undo now, for a starter that could not. After an error
// the guardian tries again.
func (a *Armed) CarryOut() error {
	err := a.question("call", message{Op: opUndo, ID: a.id}, disarmLimit)
	if err == nil {
		a.side.unregister(a)
	}
	return err
}

// Disarm ends the plan once the risky act is over. ErrUndone means that the plan was
// carried out before.
func (a *Armed) Disarm() error {
	err := a.question("disarm", message{Op: opDisarm, ID: a.id}, disarmLimit)
	a.side.unregister(a)
	return err
}

// Done is closed when the plan is no longer in a guardian's hands, and this process
// knows it: after Disarm, or when the guardian has died.
func (a *Armed) Done() <-chan struct{} { return a.done }

func (a *Armed) question(what string, m message, limit time.Duration) error {
	a.g.mu.Lock()
	defer a.g.mu.Unlock()
	if !a.side.has(a) {
		return fmt.Errorf("%s the guardian of %q: %w", what, a.plan.Name, ErrUndone)
	}
	r, err := a.side.ask([]message{m}, [][]*pidfd.Process{nil}, limit)
	switch {
	case err != nil:
	case r.Undone:
		err = ErrUndone // and the guardian keeps the plan until it is disarmed
	case r.Error != "":
		err = errors.New(r.Error)
	}
	if err != nil {
		return fmt.Errorf("%s the guardian of %q: %w", what, a.plan.Name, err)
	}
	return nil
}

// Run starts another guardian when one has died, so that a later Arm need not wait for
// one. When ctx is done it closes the guardian.
func (g *Guardian) Run(ctx context.Context) error {
	for {
		g.mu.Lock()
		s := g.side
		g.mu.Unlock()
		if s == nil { // closed
			return nil
		}
		select {
		case <-s.conn.Ended():
		case <-ctx.Done():
			return g.Close()
		}
		g.mu.Lock()
		err := g.ensure()
		g.mu.Unlock()
		if err == nil {
			continue
		}
		g.log.Error("guardian: it has died, and no other one starts (trying again)", "err", err)
		if tasks.Sleep(ctx, spawnPause) != nil {
			return g.Close()
		}
	}
}

// spawnPause is the time until Run tries again to start a guardian.
const spawnPause = time.Second

// Pid is the guardian's process, or 0 if there is none.
func (g *Guardian) Pid() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.side == nil || g.side.isGone() {
		return 0
	}
	return g.side.process.Pid
}

// Close ends the guardian and waits for its end. Plans that are still armed are
// undone. A guardian with a plan of kind Leave lives on; Close does not wait for it.
func (g *Guardian) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.side == nil {
		return nil
	}
	g.side.close()
	g.side = nil
	return nil
}
