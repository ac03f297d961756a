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
)

// A container that is started again by its policy waits so long at first, twice
// as long each next time, and never longer than that; one that has run for a
// while begins anew (as Docker's).
const (
	firstRestart = 100 * time.Millisecond
	lastRestart  = time.Minute
	steady       = 10 * time.Second
)

// How often it is looked for what is of containers that are gone, and for output
// that nobody reads any more.
const (
	reapEvery   = 10 * time.Minute
	listenEvery = 10 * time.Second
)

// Run reads the output of containers that others have started, starts those again
// whose policy says so, and takes back addresses of containers that are gone,
// until ctx is done; then it removes the bridge, with the way out of the host, if no
// container is on it. What cannot be done is tried at the next event.
func (e *Engine) Run(ctx context.Context) error {
	letGo, err := e.net.Keep()
	if err != nil {
		return err
	}
	defer letGo()
	ctx, cancel := context.WithCancel(ctx)
	k := keeper{e: e}
	k.all.Go(func() { k.tend(ctx) })
	for ev := range e.Events(ctx, nil) {
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

// leaveLimit bounds how long the end of Run waits for the devices of containers that
// have been removed: the kernel takes a network namespace down behind their end.
const leaveLimit = 5 * time.Second

// leave removes the bridge and what belongs to it, unless a container is there.
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
		case isDown(err), err != nil && ctx.Err() != nil: // the next one does it
			return nil
		case !errors.Is(err, vethnet.ErrInUse):
			return err
		case used || !sleep(ctx, 20*time.Millisecond):
			return nil
		}
	}
}

// ended are those who have an address and have ended, or were removed. used is that
// somebody else has one.
func (e *Engine) ended(ctx context.Context) (gone []string, used bool, err error) {
	owners, err := e.net.Owners()
	if err != nil {
		return nil, false, err
	}
	for _, id := range owners {
		switch t, err := e.task(e.in(ctx), id); {
		case err != nil && !isGone(err):
			return nil, false, e.fail(ctx, err, "look whether container %s has ended", id)
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

// change changes a container's state. It returns false where that is gone.
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

// died notes a container's end, for when its shim is gone, and starts it again
// where it should be.
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

// restart starts a container again that has ended, after a pause.
func (k *keeper) restart(ctx context.Context, c containers.Container, s state) {
	if !due(restartOf(c), s) {
		return
	}
	wait := min(firstRestart<<min(s.Restarts, 16), lastRestart)
	k.all.Go(func() {
		if !sleep(ctx, wait) {
			return
		}
		c, s, ok := k.change(ctx, c.ID, func(s *state) { s.Restarts++ })
		if ok && due(restartOf(c), s) {
			_ = k.e.startOnce(k.e.in(ctx), c, true) // it says why in the container's state
		}
	})
}

// due reports whether a policy wants a container that has ended to be started.
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

// listen reads the output of a container that runs, unless somebody does.
func (k *keeper) listen(ctx context.Context, id string) {
	c, err := k.e.find(k.e.in(ctx), id)
	if err == nil && recordOf(c).Dir != "" {
		_ = k.e.pumps.adopt(c.ID, recordOf(c).Dir) // it may have ended
	}
}

// lookAll takes up what nobody has looked after.
func (k *keeper) lookAll(ctx context.Context) {
	list, err := k.e.List(ctx, nil)
	if err != nil {
		return // a Gap comes again
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

// missed is a container that has ended while nobody looked.
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

// tend does what has to be done now and then.
func (k *keeper) tend(ctx context.Context) {
	reap, listen := time.NewTicker(reapEvery), time.NewTicker(listenEvery)
	defer reap.Stop()
	defer listen.Stop()
	_ = k.e.Reap(ctx) // tried again
	k.e.tendNet()
	for {
		select {
		case <-reap.C:
			_ = k.e.Reap(ctx)
		case <-listen.C:
			k.listenAll(ctx)
			k.e.tendNet()
		case <-ctx.Done():
			return
		}
	}
}

// listenAll takes over from processes that have started containers and ended.
func (k *keeper) listenAll(ctx context.Context) {
	list, err := k.e.rawList(k.e.in(ctx), nil)
	if err != nil {
		return // tried again
	}
	for _, c := range list {
		if dir := recordOf(c).Dir; dir != "" && !k.e.pumps.has(c.ID) {
			_ = k.e.pumps.adopt(c.ID, dir) // one that does not run has no output
		}
	}
}
