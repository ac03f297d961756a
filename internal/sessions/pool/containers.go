package pool

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"holdfast/internal/platform/engine"
	"holdfast/internal/sessions/kill"
)

// EngineTimeout bounds one use of the engine.
const EngineTimeout = 60 * time.Second

// Engine is the part of a container engine that every pool needs.
type Engine interface {
	Create(ctx context.Context, s engine.Spec) (string, error)
	Start(ctx context.Context, id string) error
	Inspect(ctx context.Context, id string) (engine.Container, error)
	List(ctx context.Context, labels map[string]string) ([]engine.Container, error)
	Remove(ctx context.Context, id string) error
}

// Deadman kills a pool's containers when the agent no longer can. The pool announces
// them before they run, and reports when they are dead.
type Deadman interface {
	Expect(containerID string) error
	Hold(t *kill.Target) error
	Forget(containerIDs ...string)
}

// Containers starts containers that the deadman knows. Any goroutine may call its
// methods.
type Containers struct {
	Engine  Engine
	Opener  *kill.Opener
	Deadman Deadman // may be nil
}

// Create creates a container, and calls load if the engine no longer has its image.
func (c Containers) Create(ctx context.Context, spec engine.Spec, load func(context.Context) error) (string, error) {
	id, err := c.Engine.Create(ctx, spec)
	if !errors.Is(err, engine.ErrNoImage) {
		return id, err
	}
	if err := load(ctx); err != nil {
		return "", fmt.Errorf("loading image %s: %w", spec.Image, err)
	}
	return c.Engine.Create(ctx, spec)
}

// Start announces a created container to the deadman, starts it and opens its init.
// The caller passes the target to Hold and closes it.
func (c Containers) Start(ctx context.Context, id string) (engine.Container, *kill.Target, error) {
	var now engine.Container
	if c.Deadman != nil {
		if err := c.Deadman.Expect(id); err != nil {
			return now, nil, fmt.Errorf("announcing a container to the deadman: %w", err)
		}
	}
	if err := c.Engine.Start(ctx, id); err != nil {
		return now, nil, err
	}
	now, err := c.Engine.Inspect(ctx, id)
	if err != nil {
		return now, nil, err
	}
	if !now.Running() {
		return now, nil, fmt.Errorf("the container ended with exit code %d", now.ExitCode)
	}
	target, err := c.Opener.Open(now.ID, now.Name, now.Pid)
	return now, target, err
}

// Hold passes the target of a running container to the deadman. After an error the
// deadman still has what Start announced, and retries.
func (c Containers) Hold(t *kill.Target) error {
	if c.Deadman == nil {
		return nil
	}
	return c.Deadman.Hold(t)
}

// Forget tells the deadman that containers are dead or removed.
func (c Containers) Forget(ids ...string) {
	if c.Deadman != nil && len(ids) > 0 {
		c.Deadman.Forget(ids...)
	}
}

// Remove removes a container, running or not, and sees it dead: its start may have
// failed with the engine. Then the deadman forgets it.
func (c Containers) Remove(ctx context.Context, id string) error {
	if err := c.Engine.Remove(ctx, id); err != nil {
		return err
	}
	if err := c.Opener.SeeDead(ctx, []string{id})[id]; err != nil {
		return fmt.Errorf("container %s is not seen dead: %w", id, err)
	}
	c.Forget(id)
	return nil
}

// NewID returns the random part of a new container's name.
func NewID() string {
	b := make([]byte, 6)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
