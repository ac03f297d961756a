package session

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/tasks"
)

// copyTime bounds the copy of one session's memory.
const copyTime = 5 * time.Minute

// Copy saves the memory of a session that goes on, as the snapshot s.Name until s.Until; see
// Mover.Copy. It waits for a booting session. Errors: holdfast.ErrNotFound;
// holdfast.ErrNoMemory if the copy was not attempted.
func (m *Manager) Copy(ctx context.Context, key holdfast.SessionKey, s holdfast.MemorySnapshot) (holdfast.MemorySnapshot, error) {
	_, release, err := m.Join(ctx, key) // the session is not idle meanwhile
	if err != nil {
		return s, err
	}
	defer release()
	m.mu.Lock()
	e := m.sessions[key]
	gone := e == nil || e.phase != ready
	m.mu.Unlock()
	if gone {
		return s, notHere(key)
	}
	if !e.template.Fork {
		err := fmt.Errorf("session %s: %w: template %s does not say fork: allowed", key, holdfast.ErrNoMemory, e.template.Name)
		return s, holdfast.WithHint(err, "see docs/forking.md for the requirements")
	}
	d, free, err := m.reserve(e)
	if err != nil {
		return s, fmt.Errorf("session %s: %w", key, err)
	}
	defer free()
	ctx, cancel := context.WithTimeout(ctx, copyTime)
	defer cancel()
	if s, err = m.deps.Mover.Copy(ctx, d, s); err != nil {
		return s, fmt.Errorf("copy the memory of session %s: %w", key, err)
	}
	m.log.Info("the memory of a session is copied", "session", key, "epoch", s.Epoch, "snapshot", s.Name, "bytes", s.Bytes, "pause", s.Pause)
	return s, nil
}

// maxRenewOutput is how much of the output of a failed command is kept, in bytes.
const maxRenewOutput = 2 << 10

// gVisor may refuse commands, with this exit code of Docker's for a command that cannot be run,
// for a moment after the programs of a restored container have gone on.
const (
	cannotRun   = 126
	restoreEnds = 2 * time.Second
)

// renewChild runs the template's command in a container that was started from the memory of
// another session.
func (b *attempt) renewChild(ctx context.Context) error {
	r := b.e.template.Renew
	if b.from() == nil || len(r.Command) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	env := []string{"HOLDFAST_GENERATION=" + b.generation, "HOLDFAST_PARENT=" + string(b.from().Key)}
	for name, value := range b.e.template.identity(b.owner).Env {
		env = append(env, name+"="+value)
	}
	var out tail
	run := func() (int, error) {
		out = tail{}
		return b.m.deps.Engine.Exec(ctx, b.container, engine.Exec{Command: r.Command, Env: env, Stdout: &out, Stderr: &out})
	}
	code, err := run()
	for begun := time.Now(); err == nil && code == cannotRun && time.Since(begun) < restoreEnds && tasks.Sleep(ctx, firstPause) == nil; {
		code, err = run()
	}
	if err == nil && code != 0 {
		err = fmt.Errorf("exit code %d", code)
	}
	if err != nil {
		text := bytes.TrimSpace(out.b)
		return fmt.Errorf("the command renew: %w: %q", err, text[max(0, len(text)-maxRenewOutput):])
	}
	return nil
}
