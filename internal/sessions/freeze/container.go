// Package freeze freezes the containers of sessions that are not used, and thaws them when
// they are. A frozen container keeps its memory and its sockets, and uses no CPU.
package freeze

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/frozen"
	"holdfast/internal/sessions/kill"
)

// Errors of Freeze. In both cases the container runs as before.
var (
	// ErrUsed means that the container is used again, or ends.
	ErrUsed = errors.New("the container is used")
	// ErrPaused means that another program has frozen the container, as `docker pause` does.
	ErrPaused = errors.New("another program has paused the container")
)

const (
	// freezeTime is how long the processes of a container have to stop. A process that
	// waits in the kernel without a signal, for a disk that hangs for example, stops later.
	freezeTime = 2 * time.Second
	frozenPoll = 200 * time.Microsecond
)

// Container is a container that this process freezes. It needs no Close. Any goroutine may
// call its methods.
type Container struct {
	id     string
	group  cgroup.Group
	memory kill.Memory
	notes  frozen.Notes

	asleep atomic.Bool // written with mu held

	mu    sync.Mutex    // orders the writes of the freezer
	woken chan struct{} // closed by Thaw; of the present sleep
	ended bool
}

// Open returns the container of a target that runs.
func Open(t *kill.Target, notes frozen.Notes) (*Container, error) {
	g, err := t.Freezer()
	if err != nil {
		return nil, err
	}
	return &Container{id: t.ID, group: g, memory: t.Memory(), notes: notes}, nil
}

// Asleep reports whether the container is frozen, or about to be. A caller that uses the
// container calls Thaw then.
func (c *Container) Asleep() bool { return c.asleep.Load() }

// Freeze freezes the container and returns when all its processes have stopped. unused is
// called once Asleep returns true. If it returns false, or if Thaw or End is called
// meanwhile, the error is ErrUsed. If the processes do not stop, the container is thawed
// again. ErrPaused.
func (c *Container) Freeze(unused func() bool) error {
	woken, err := c.begin(unused)
	if err != nil {
		return err
	}
	for until := time.Now().Add(freezeTime); ; time.Sleep(frozenPoll) {
		is, err := c.group.Frozen()
		switch {
		case !c.sleeps(woken):
			return ErrUsed
		case err == nil && is:
			return nil
		case err == nil && time.Now().Before(until):
			continue
		}
		_, thawErr := c.Thaw()
		return errors.Join(fmt.Errorf("not all processes of %s have stopped within %v", c.group.Dir(), freezeTime), err, thawErr)
	}
}

// begin notes and freezes the group.
func (c *Container) begin(unused func() bool) (woken chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended || c.asleep.Load() {
		return nil, ErrUsed
	}
	if paused, err := c.group.Frozen(); err != nil || paused {
		return nil, errors.Join(err, ErrPaused)
	}
	c.asleep.Store(true)
	if !unused() {
		c.asleep.Store(false)
		return nil, ErrUsed
	}
	if err = c.notes.Add(c.id, c.group.FreezerFile()); err == nil {
		err = c.group.BeginFreeze()
	}
	if err != nil {
		c.asleep.Store(false)
		return nil, errors.Join(err, c.group.EndFreeze(), c.notes.Remove(c.id))
	}
	c.woken = make(chan struct{})
	return c.woken, nil
}

// sleeps reports whether the sleep with this channel goes on.
func (c *Container) sleeps(woken <-chan struct{}) bool {
	select {
	case <-woken:
		return false
	default:
		return true
	}
}

// Thaw continues the container if this process has frozen it. It returns whether it did.
// It does not wait for the container. After an error the container may still be frozen,
// and Asleep returns true.
func (c *Container) Thaw() (bool, error) {
	if !c.asleep.Load() {
		return false, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.thawLocked()
}

func (c *Container) thawLocked() (bool, error) {
	if !c.asleep.Load() {
		return false, nil
	}
	if err := c.group.EndFreeze(); err != nil {
		return false, fmt.Errorf("thaw the container: %w", err)
	}
	close(c.woken)
	c.asleep.Store(false)
	return true, c.notes.Remove(c.id)
}

// End continues the container for good: it can be killed and not be frozen again.
func (c *Container) End() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	_, err := c.thawLocked()
	return err
}

// reclaimTime bounds Reclaim.
const reclaimTime = 10 * time.Second

// Reclaim makes the kernel move the memory of a sleeping container to the host's swap
// space, as far as there is room, until the container is thawed. It returns the memory
// that remains, in bytes. Without swap space it reclaims nothing: the kernel could drop
// only cached files, which other containers may use and which the kernel drops itself when
// it needs memory. Nothing is reclaimed on cgroup v1, which has no memory.reclaim.
func (c *Container) Reclaim(ctx context.Context) (int64, error) {
	before, err := c.memory.Usage()
	if err != nil || !c.group.V2 || !hasSwap() {
		return before, err
	}
	c.mu.Lock()
	woken := c.woken
	c.mu.Unlock()
	if !c.asleep.Load() {
		return before, nil
	}
	ctx, cancel := context.WithTimeout(ctx, reclaimTime)
	defer cancel()
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-woken:
			cancel()
		case <-ended:
		}
	}()
	if err := c.memory.Reclaim(ctx, before); err != nil && ctx.Err() == nil && !errors.Is(err, errors.ErrUnsupported) {
		return before, err
	}
	return c.memory.Usage()
}
