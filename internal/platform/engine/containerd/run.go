package containerd

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"

	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/vethnet"
	"holdfast/internal/platform/tasks"
)

// The back-off of restarts, as with Docker: the first wait, doubled each time, the
// longest wait, and the running time that resets it.
const (
	firstRestart = 100 * time.Millisecond
	lastRestart  = time.Minute
	steady       = 10 * time.Second
)

// How often Run looks for resources of containers that are gone, and for output that
// no process reads.
const (
	reapEvery   = 10 * time.Minute
	listenEvery = 10 * time.Second
)

// Run reads the output of containers that other processes have started, restarts
// containers by their policies, and frees the addresses of containers that are gone.
// When ctx is done it removes the bridge and the NAT rules if no container is
// connected. It retries failed work at the next event.
func (e *Engine) Run(ctx context.Context) error {
	release, err := e.net.Keep()
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithCancel(ctx)
	k := keeper{e: e}
	k.all.Go(func() { k.tend(ctx) })
	for ev := range e.Watch(ctx, engine.WatchOptions{}) {
		switch {
		case ev.Gap:
			k.lookAll(ctx)
		case ev.Action == "die":
			k.died(ctx, ev)
		case ev.Action == "oom":
			k.change(ctx, ev.ID, func(s *state) { s.OOM = true })
		case ev.Action == "start":
			k.listen(ctx, ev.ID)
		}
	}
	cancel()
	k.all.Wait()
	return e.leave()
}

// leaveLimit bounds how long the end of Run waits for the devices of removed
// containers: the kernel removes a network namespace asynchronously.
const leaveLimit = 5 * time.Second

// leave removes the bridge and its rules, unless a container is connected.
func (e *Engine) leave() error {
	ctx, cancel := context.WithTimeout(context.Background(), leaveLimit)
	defer cancel()
	for {
		used := false
		err := e.net.Remove(func() (gone []string, err error) {
			gone, used, err = e.ended(ctx)
			return gone, err
		})
		switch {
		case isDown(err), err != nil && ctx.Err() != nil: // the next agent removes it
			return nil
		case !errors.Is(err, vethnet.ErrInUse):
			return err
		case used || tasks.Sleep(ctx, 20*time.Millisecond) != nil:
			return nil
		}
	}
}

// ended returns the containers with an address that have ended or were removed. used
// reports whether another container has an address.
func (e *Engine) ended(ctx context.Context) (gone []string, used bool, err error) {
	owners, err := e.net.Owners()
	if err != nil {
		return nil, false, err
	}
	for _, id := range owners {
		switch t, err := e.task(e.in(ctx), id); {
		case err != nil && !isGone(err):
			return nil, false, e.fail(ctx, err, "check whether container %s has ended", id)
		case err == nil && t.Status != task.Status_STOPPED, err != nil && e.exists(e.in(ctx), id):
			used = true
		default:
			gone = append(gone, id)
		}
	}
	return gone, used, nil
}

// keeper is one Run.
type keeper struct {
	e   *Engine
	all sync.WaitGroup
}

// change changes a container's state. It returns false if the container is gone.
func (k *keeper) change(ctx context.Context, id string, f func(*state)) (containers.Container, state, bool) {
	ctx = k.e.in(ctx)
	unlock, err := k.e.locks.lock(ctx, id)
	if err != nil {
		return containers.Container{}, state{}, false
	}
	defer unlock()
	c, err := k.e.find(ctx, id)
	if err != nil || recordOf(c).Dir == "" {
		return c, state{}, false
	}
	s, err := readState(recordOf(c).Dir)
	if err != nil {
		return c, s, false
	}
	f(&s)
	return c, s, writeState(recordOf(c).Dir, s) == nil
}

// died records a container's end, because its shim will be gone, and restarts it if
// its policy requires that.
func (k *keeper) died(ctx context.Context, ev engine.Event) {
	c, s, ok := k.change(ctx, ev.ID, func(s *state) {
		if s.Started.After(ev.Time) {
			return // it runs again
		}
		if ev.Time.Sub(s.Started) > steady {
			s.Restarts = 0
		}
		s.Ended, s.ExitCode = ev.Time, ev.ExitCode
	})
	if ok {
		k.restart(ctx, c, s)
	}
}

// restart starts an ended container again after a pause.
func (k *keeper) restart(ctx context.Context, c containers.Container, s state) {
	if !due(restartOf(c), s) {
		return
	}
	wait := min(firstRestart<<min(s.Restarts, 16), lastRestart)
	k.all.Go(func() {
		if tasks.Sleep(ctx, wait) != nil {
			return
		}
		c, s, ok := k.change(ctx, c.ID, func(s *state) { s.Restarts++ })
		if ok && due(restartOf(c), s) {
			_ = k.e.startOnce(k.e.in(ctx), c, true) // the container's state has the error
		}
	})
}

// due reports whether a policy requires a restart of an ended container.
func due(p engine.RestartPolicy, s state) bool {
	if s.Stopped || s.Ended.IsZero() {
		return false
	}
	switch p {
	case engine.RestartAlways, engine.RestartUnlessStopped:
		return true
	case engine.RestartOnFailure:
		return s.ExitCode != 0
	}
	return false
}

// listen reads the output of a running container, unless another process does.
func (k *keeper) listen(ctx context.Context, id string) {
	c, err := k.e.find(k.e.in(ctx), id)
	if err == nil && recordOf(c).Dir != "" {
		_ = k.e.pumps.adopt(c.ID, recordOf(c).Dir) // it may have ended
	}
}

// lookAll handles the containers that were unattended before.
func (k *keeper) lookAll(ctx context.Context) {
	list, err := k.e.List(ctx, nil)
	if err != nil {
		return // retried at the next Gap
	}
	for _, c := range list {
		switch {
		case c.Running():
			k.listen(ctx, c.ID)
		case c.State == "exited":
			k.missed(ctx, c.ID)
		}
	}
}

// missed handles a container that has ended unobserved.
func (k *keeper) missed(ctx context.Context, id string) {
	c, err := k.e.Inspect(ctx, id)
	if err != nil || c.State != "exited" {
		return
	}
	raw, s, ok := k.change(ctx, id, func(s *state) {
		if s.Ended.Before(s.Started) {
			s.Ended, s.ExitCode = time.Now(), c.ExitCode
		}
	})
	if ok {
		k.restart(ctx, raw, s)
	}
}

// tend does the periodic work.
func (k *keeper) tend(ctx context.Context) {
	reap, listen := time.NewTicker(reapEvery), time.NewTicker(listenEvery)
	defer reap.Stop()
	defer listen.Stop()
	_ = k.e.Reap(ctx) // tried again
	k.e.tendNet(true)
	tended := 1
	for {
		select {
		case <-reap.C:
			_ = k.e.Reap(ctx)
		case <-listen.C:
			k.listenAll(ctx)
			k.e.tendNet(tended%vethnet.DevicesEvery == 0)
			tended++
		case <-ctx.Done():
			return
		}
	}
}

// listenAll reads the output of containers whose starter has ended.
func (k *keeper) listenAll(ctx context.Context) {
	list, err := k.e.rawList(k.e.in(ctx), nil)
	if err != nil {
		return // tried again
	}
	for _, c := range list {
		if dir := recordOf(c).Dir; dir != "" && !k.e.pumps.has(c.ID) {
			_ = k.e.pumps.adopt(c.ID, dir) // a container that does not run has no output
		}
	}
}
