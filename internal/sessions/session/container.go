package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/kill"
)

// create creates the container, in a network of its own, and first pulls its image if this
// host does not have it.
func (b *attempt) create(ctx context.Context, spec engine.Spec) error {
	phase := "create"
	if spec.Labels[LabelStep] != "" {
		phase = "init"
	}
	b.beginSpinup(spec)
	var took time.Duration
	try := func() error {
		begun := time.Now()
		defer func() { took = time.Since(begun) }()
		return b.phase(phase, func() error {
			b.spec = b.takeNetwork(ctx, spec)
			return b.createOnce(ctx, b.spec)
		})
	}
	err := try()
	if !errors.Is(err, engine.ErrNoImage) {
		b.created(took, err)
		if err == nil {
			b.spinup.Pulled(spinup.Pull{Image: spec.Image, Cached: true, Done: true})
		}
		return err
	}
	// The pull may take minutes, in which other boots may use the slot and the holder of
	// the network.
	b.m.dropNetwork(b.e)
	b.leaveSlot()
	err = b.phase("pull", func() error {
		figures, err := b.m.pulls.fetch(ctx, spec.Image)
		b.spinup.Pulled(figures)
		return err
	})
	if err != nil {
		return err
	}
	if err := b.slot(ctx); err != nil {
		return err
	}
	err = try()
	b.created(took, err)
	return err
}

// created records the spin-up's create phase.
func (b *attempt) created(took time.Duration, err error) {
	b.spinup.Took(spinup.Create, took, err)
	b.spinup.Container(b.container, b.spec.Name)
}

func (b *attempt) createOnce(ctx context.Context, spec engine.Spec) error {
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	return retry(ctx, holdfast.ErrEngine, func() error {
		id, err := b.m.deps.Engine.Create(ctx, spec)
		if errors.Is(err, engine.ErrConflict) {
			id, err = b.earlierContainer(ctx, spec)
		}
		if err != nil {
			return err
		}
		b.container = id
		return nil
	})
}

// earlierContainer returns the container that an earlier attempt of the same create made,
// whose answer was lost. The name contains the epoch. Another container can have that
// name only if agents of different stores share an engine.
func (b *attempt) earlierContainer(ctx context.Context, spec engine.Spec) (string, error) {
	c, err := b.m.deps.Engine.Inspect(ctx, spec.Name)
	if errors.Is(err, holdfast.ErrNotFound) {
		return "", fmt.Errorf("the name %s was taken just now: %w", spec.Name, holdfast.ErrEngine) // retry
	}
	if err != nil {
		return "", err
	}
	if c.State != "created" || !matchesSpec(c, spec) {
		return "", fmt.Errorf("the name %s is another container's, which is %s: %w", spec.Name, c.State, holdfast.ErrEngine) // it may be about to be removed
	}
	return c.ID, nil
}

// matchesSpec reports whether a container was made from the spec, by the spec's labels. An
// image may add other labels.
func matchesSpec(c engine.Container, spec engine.Spec) bool {
	for name, value := range spec.Labels {
		if c.Labels[name] != value {
			return false
		}
	}
	return true
}

func (b *attempt) start(ctx context.Context) error {
	return b.startWith(ctx, func(ctx context.Context) error { return b.m.deps.Engine.Start(ctx, b.container) })
}

// startWith announces the container to the deadman and calls f, again while the engine is
// unavailable.
func (b *attempt) startWith(ctx context.Context, f func(context.Context) error) error {
	if err := b.m.deps.Deadman.Expect(b.container); err != nil {
		return fmt.Errorf("announcing the container to the deadman: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	return b.spinup.Time(spinup.Start, func() error {
		return retry(ctx, holdfast.ErrEngine, func() error { return f(ctx) })
	})
}

func (b *attempt) inspect(ctx context.Context) (c engine.Container, err error) {
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	err = retry(ctx, holdfast.ErrEngine, func() error {
		c, err = b.m.deps.Engine.Inspect(ctx, b.container)
		return err
	})
	return c, err
}

// open opens the container's init. It returns errDied if the init has already exited.
func (b *attempt) open(ctx context.Context) (engine.Container, error) {
	c, err := b.inspect(ctx)
	if err != nil {
		return c, err
	}
	if !c.Running() {
		return c, errDied
	}
	b.target, err = b.m.deps.Opener.Open(c.ID, c.Name, c.Pid)
	if errors.Is(err, kill.ErrGone) {
		return c, errDied
	}
	if err != nil {
		return c, fmt.Errorf("opening the container's init: %w", err)
	}
	b.target.Key = b.e.key
	b.m.hold(b.target)
	return c, nil
}

// exit returns why a dead container ended, once the engine has noticed. If the engine is
// not available meanwhile, exit assumes that the engine's end was the cause.
func (b *attempt) exit(boot context.Context) error {
	ctx, cancel := context.WithTimeout(boot, exitTimeout)
	defer cancel()
	// An engine that is ending or starting may accept a connection and not answer.
	away, silent := false, true
	for {
		c, err := b.m.deps.Engine.Inspect(ctx, b.container)
		if err == nil && !c.Running() {
			return b.whyEnded(boot, c, " before it was ready")
		}
		away, silent = away || errors.Is(err, holdfast.ErrEngine), err != nil
		if tasks.Sleep(ctx, firstPause) != nil {
			break
		}
	}
	if away || silent {
		return fmt.Errorf("%w: %w", engine.ErrInterrupted, errDied)
	}
	return errDied
}

// unreachable returns why a container has no address: err, or, if the container ends, the
// reason for that. Docker takes the networks of its containers away when it ends.
func (b *attempt) unreachable(ctx context.Context, err error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*exitTimeout)
	defer cancel()
	for begun := time.Now(); time.Since(begun) < exitTimeout; {
		if !b.target.Alive() {
			return b.exit(ctx)
		}
		if tasks.Sleep(ctx, firstPause) != nil {
			break
		}
	}
	return err
}

// whyEnded returns the error of exited. It adds engine.ErrInterrupted if the engine has stopped
// the container, as Docker does before it ends, or if the engine does not answer.
func (b *attempt) whyEnded(ctx context.Context, c engine.Container, when string) error {
	b.exited = &c
	err := exited(c, when)
	ctx, cancel := context.WithTimeout(ctx, exitTimeout)
	defer cancel()
	stopped, unknown := b.m.deps.Engine.Stopped(ctx, c.ID)
	if stopped || unknown != nil {
		return fmt.Errorf("%w: %w", engine.ErrInterrupted, err)
	}
	return err
}

// exited returns the error of a container that ended. when is a clause.
func exited(c engine.Container, when string) error {
	switch {
	case c.OOMKilled:
		return holdfast.WithHint(errors.New("the container ran out of memory"), "raise the template's memory")
	case c.Error != "":
		return fmt.Errorf("the container ended with exit code %d: %s", c.ExitCode, c.Error)
	}
	return fmt.Errorf("the container ended with exit code %d%s", c.ExitCode, when)
}

// withLog adds the container's last lines, if they can be read, to a boot's error.
func (b *attempt) withLog(ctx context.Context, err error) error {
	boot, ok := errors.AsType[*holdfast.BootError](err)
	if b.container == "" || !ok || ctx.Err() != nil { // a cancelled boot needs no log
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	b.output = b.m.lastOutput(ctx, b.container)
	boot.Log = lastLines(b.output)
	return err
}

// lastOutput returns the last lines of a container's output, as many as an Ending keeps; ""
// if they cannot be read.
func (m *Manager) lastOutput(ctx context.Context, id string) string {
	var out tail
	if m.deps.Engine.Logs(ctx, id, engine.LogOptions{Tail: holdfast.MaxEndLines}, &out) != nil {
		return ""
	}
	return string(out.b)
}

// tail keeps the last bytes that are written to it: a line may have any length.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if over := len(t.b) - holdfast.MaxEndLog; over > holdfast.MaxEndLog {
		t.b = append([]byte(nil), t.b[over:]...)
	}
	return len(p), nil
}

// lastLines returns the end of a container's output for the error of its boot.
func lastLines(text string) string {
	text = text[max(0, len(text)-logBytes):]
	lines := strings.SplitAfter(strings.TrimSuffix(text, "\n"), "\n")
	end := text[len(strings.TrimSuffix(text, "\n")):]
	return strings.ToValidUTF8(strings.Join(lines[max(0, len(lines)-logLines):], "")+end, "�")
}
