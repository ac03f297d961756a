// Package kill kills containers and verifies their death without the engine.
//
// A container is dead when its init's pidfd is readable and its control group is
// empty. Both are needed. A pid namespace's init is waitable only after everything
// else in the namespace is gone (pid_namespaces(7)). A container that shares a pid
// namespace, and a process that was put into the control group from outside, outlive
// init.
package kill

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/pidfd"
)

// Budget is the time limit of a Kill if its context has no deadline.
const Budget = 10 * time.Second

// DefaultPauseFrom is the least number of containers for which stopping the engine
// saves time: fewer die within the time that the stopping takes.
const DefaultPauseFrom = 8

// stall is the time without a death after which the remaining containers are
// examined: a freezer or a stopped reaper may keep them alive. On an idle machine an
// init dies in under a millisecond.
const stall = 5 * time.Millisecond

// Pauser stops the container engine while containers die, so that it does not take
// their CPUs.
type Pauser interface {
	// Pause stops the engine and the targets' shims. Resume continues them; if it
	// does not, a guardian does at its deadline. After an error nothing is stopped.
	Pause(ctx context.Context, targets []*Target) (PausedEngine, error)
}

// PausedEngine is a stopped engine.
type PausedEngine interface {
	// Release continues one target's shim, so that it can reap.
	Release(t *Target) error
	// Resume continues all processes. An error means that the guardian had to do it,
	// or that it failed.
	Resume() error
}

// Killer kills containers. The zero value works, without pausing the engine and
// without logs. Its methods may be called from any goroutine.
type Killer struct {
	Pauser    Pauser // nil: the engine keeps running
	PauseFrom int    // the least number of targets that the engine is stopped for; 0 is DefaultPauseFrom
	Log       *slog.Logger
	// Observe, if not nil, is called with each step as it begins. Tests kill this
	// process in it.
	Observe func(step string)
}

// The steps of a Kill, in their order, as reports and Observe name them.
const (
	StepPause   = "pause"   // stop the engine
	StepHold    = "hold"    // keep the containers' mount namespaces for later
	StepSignal  = "signal"  // SIGKILL to all
	StepDie     = "die"     // wait until every init is dead
	StepSweep   = "sweep"   // wait until every control group is empty, and kill what is left in them
	StepRelease = "release" // release dead sessions, see Killed.Step
	StepResume  = "resume"  // continue the engine
)

// Kill kills the containers. It returns when all are seen dead, or when ctx is done; a
// ctx without a deadline gets Budget. Containers that are not dead by then are in Left
// with the reason. Targets that were dead before are in Dead. The targets stay open,
// and should be closed soon: the kernel removes the containers' mounts only then.
func (k *Killer) Kill(ctx context.Context, targets []*Target) holdfast.KillReport {
	return k.KillPaused(ctx, targets).Resume()
}

// Killed is the result of KillPaused.
type Killed struct{ r *run }

// KillPaused is Kill, but leaves a paused engine paused until Resume: an engine that
// may clean up after hundreds of dead containers uses all CPUs. The guardian resumes
// the engine at its deadline in any case.
func (k *Killer) KillPaused(ctx context.Context, targets []*Target) *Killed {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, Budget)
		defer cancel()
	}
	r := &run{killer: k, targets: targets, pending: make(map[int]bool, len(targets)), begun: time.Now()}
	r.report.Dead = make([]string, 0, len(targets))
	r.report.Left = []holdfast.Leftover{}
	r.pause(ctx)
	r.hold()
	r.signal()
	r.die(ctx)
	r.sweep(ctx)
	r.report.Took = holdfast.Millis(time.Since(r.begun))
	r.explain() // while what keeps the rest alive can still be seen
	return &Killed{r}
}

// Report returns what became of the targets.
func (k *Killed) Report() holdfast.KillReport { return k.r.report }

// Step runs f, which returns how many things it acted on, and adds it to the steps
// of the report. It is for work to be done while the engine is paused.
func (k *Killed) Step(name string, f func() int) { k.r.step(name, f) }

// Resume resumes the engine and returns the complete report. It must be called once.
func (k *Killed) Resume() holdfast.KillReport {
	k.r.resume()
	return k.r.report
}

// run is one Kill.
type run struct {
	killer  *Killer
	targets []*Target
	begun   time.Time
	paused  PausedEngine
	pending map[int]bool // targets whose init is not seen dead
	unswept []int        // targets whose init is dead and whose group may not be empty
	report  holdfast.KillReport
}

// step times f, which returns the number of things it acted on.
func (r *run) step(name string, f func() int) {
	if r.killer.Observe != nil {
		r.killer.Observe(name)
	}
	begun := time.Now()
	n := f()
	r.report.Steps = append(r.report.Steps, holdfast.Step{Name: name, Took: holdfast.Millis(time.Since(begun)), Count: n})
}

// many reports whether there are enough targets to pause the engine and hold the
// mounts.
func (r *run) many() bool {
	return len(r.targets) >= cmp.Or(r.killer.PauseFrom, DefaultPauseFrom)
}

func (r *run) pause(ctx context.Context) {
	if r.killer.Pauser == nil || !r.many() {
		return
	}
	r.step(StepPause, func() int {
		paused, err := r.killer.Pauser.Pause(ctx, r.targets)
		if err != nil {
			r.notice("the engine was not stopped during the kill: " + err.Error())
			return 0
		}
		r.paused, r.report.EnginePaused = paused, true
		return 1
	})
}

func (r *run) resume() {
	if r.paused == nil {
		return
	}
	r.step(StepResume, func() int {
		if err := r.paused.Resume(); err != nil {
			r.notice("continuing the engine: " + err.Error())
		}
		r.paused = nil
		return 1
	})
}

func (r *run) notice(s string) {
	if r.report.Notice != "" {
		s = r.report.Notice + "; " + s
	}
	r.report.Notice = s
	if r.killer.Log != nil {
		r.killer.Log.Warn("kill: " + s)
	}
}

// hold keeps the mount namespaces alive beyond their processes. The kernel takes one
// down when the last process in it exits, inside its exit(2) and with waits for RCU
// (put_mnt_ns, fs/namespace.c), which is most of what dying costs: with it held 100
// containers died in 9 and 23 ms instead of 135 and 125, on a busy machine with 2
// CPUs. The container is dead before that work is done: no process is left to use the
// mounts.
func (r *run) hold() {
	if !r.many() {
		return
	}
	r.step(StepHold, func() int {
		for _, t := range r.targets {
			t.holdMounts()
		}
		return len(r.targets)
	})
}

// signal sends SIGKILL to every init, and to a whole group if the death of its init
// does not kill the other processes.
func (r *run) signal() {
	r.step(StepSignal, func() int {
		for i, t := range r.targets {
			r.pending[i] = true
			// The next step sees a dead init. Any other failure leaves it alive and
			// is explained at the end.
			_ = t.init.Signal(unix.SIGKILL)
		}
		groups := lanes()
		for _, t := range r.targets {
			if !t.alone {
				groups.Go(func() error { t.killGroups(); return nil })
			}
		}
		_ = groups.Wait() // the functions return no error
		return len(r.targets)
	})
}

// lanes returns a group of functions that kill, so that a container with many groups does
// not delay the others.
func lanes() *errgroup.Group {
	var g errgroup.Group
	g.SetLimit(16)
	return &g
}

// killGroups kills all that is in the container's groups. Errors are not reported:
// processes that they leave alive are seen in the groups and explained at the end.
func (t *Target) killGroups() {
	for _, g := range t.groups {
		if g.CanKill() {
			_ = g.Kill()
			break // the other groups are looked at if they turn out not to be empty
		}
		if !g.V2 || len(t.groups) == 1 {
			_ = g.Kill()
		}
	}
}

// die waits until every init is dead.
func (r *run) die(ctx context.Context) {
	r.step(StepDie, func() int {
		n := len(r.pending)
		set, err := pidfd.NewSet()
		if err != nil { // for example no descriptor left, which must not keep a container alive
			r.notice(err.Error())
			r.dieUnwatched(ctx)
			return n - len(r.pending)
		}
		defer set.Close()
		for i, t := range r.targets {
			if err := set.Add(t.init, int32(i)); err != nil {
				r.notice(err.Error()) // the target was closed: it stays in pending
			}
		}
		stop := context.AfterFunc(ctx, set.Close)
		defer stop()
		tags := make([]int32, 0, len(r.targets))
		for len(r.pending) > 0 {
			if tags, err = set.Wait(tags[:0], time.Now().Add(stall)); err != nil {
				break // ctx is done
			}
			for _, i := range tags {
				r.initDied(int(i))
			}
			if len(tags) == 0 {
				r.help()
			}
		}
		return n - len(r.pending)
	})
}

// dieUnwatched polls every init.
func (r *run) dieUnwatched(ctx context.Context) {
	for len(r.pending) > 0 && ctx.Err() == nil {
		for i, t := range r.targets {
			if r.pending[i] && t.init.Exited() {
				r.initDied(i)
			}
		}
		r.help()
		time.Sleep(time.Millisecond)
	}
}

// initDied records a dead init: the container is dead if its groups are empty.
func (r *run) initDied(i int) {
	delete(r.pending, i)
	if empty, err := r.targets[i].empty(); err == nil && empty {
		r.report.Dead = append(r.report.Dead, r.targets[i].ID)
		return
	}
	r.unswept = append(r.unswept, i)
}

// help treats containers that do not die. A process frozen on v1 (a paused container)
// takes SIGKILL only when it runs again. An init whose group is empty has exited, and
// waits in the kernel (zap_pid_ns_processes) for zombies of its pid namespace whose
// parent lives outside. Those are commands that the engine has started in the
// container. Only the shim can reap them, and the pause may have stopped the shim.
func (r *run) help() {
	for i := range r.pending {
		t := r.targets[i]
		_ = t.init.Signal(unix.SIGKILL) // the first signal may have failed
		for _, g := range t.groups {
			if !g.V2 {
				_ = g.Thaw()
			}
		}
		if r.paused == nil || t.shim == nil {
			continue
		}
		if empty, err := t.empty(); err == nil && empty {
			_ = r.paused.Release(t) // Resume continues it in any case
		}
	}
}

// sweep kills what outlived its init and waits until the groups are empty.
func (r *run) sweep(ctx context.Context) {
	if len(r.unswept) == 0 {
		return
	}
	r.step(StepSweep, func() int {
		n := len(r.unswept)
		for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
			r.sweepOnce()
			if len(r.unswept) == 0 || ctx.Err() != nil {
				return n - len(r.unswept)
			}
			until, _ := ctx.Deadline()
			if err := cgroup.WaitChange(r.groupsLeft(), min(pause, time.Until(until))); err != nil {
				r.notice(err.Error())
				return n - len(r.unswept)
			}
		}
	})
}

func (r *run) sweepOnce() {
	left := r.unswept
	r.unswept = nil
	sweeps := lanes()
	for _, i := range left {
		sweeps.Go(func() error {
			for _, g := range r.targets[i].groups {
				if empty, err := g.Empty(); err == nil && !empty {
					_ = g.Kill()
				}
			}
			return nil
		})
	}
	_ = sweeps.Wait() // the functions return no error
	for _, i := range left {
		r.initDied(i)
	}
}

func (r *run) groupsLeft() []cgroup.Group {
	var gs []cgroup.Group
	for _, i := range r.unswept {
		for _, g := range r.targets[i].groups {
			if empty, err := g.Empty(); err != nil || !empty {
				gs = append(gs, g)
			}
		}
	}
	return gs
}

// explain fills Left after a last check.
func (r *run) explain() {
	for i, t := range r.targets {
		switch {
		case !r.pending[i]:
		case !t.Alive():
			r.report.Dead = append(r.report.Dead, t.ID)
		default:
			r.report.Left = append(r.report.Left, t.leftover())
		}
	}
	for _, i := range r.unswept {
		r.report.Left = append(r.report.Left, r.targets[i].leftover())
	}
	for _, l := range r.report.Left {
		if r.killer.Log != nil {
			r.killer.Log.Error("container is not dead", "container", l.Name, "id", l.ContainerID, "pids", l.Pids, "reason", l.Reason)
		}
	}
}
