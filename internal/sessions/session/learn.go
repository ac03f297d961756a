package session

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/boottime"
)

const (
	// learnLimit is how long the engine may take to tell how a container ended. An engine
	// that starts again needs some seconds.
	learnLimit = time.Minute
	// fenceLook is how long to wait for the news that the deadman has killed a container.
	fenceLook = time.Second
	// fenceSlack is the time between a kill by the deadman and the end of the container
	// that the engine reports, at most.
	fenceSlack = 10 * time.Second
	// earlierLimit bounds all questions about the ends under an earlier agent, earlierLog
	// the read of one container's output.
	earlierLimit = 10 * time.Second
	earlierLog   = time.Second
)

// learnEnd asks the engine how a session's container ended, and reports that. If the agent
// ends meanwhile, the next one does it.
func (m *Manager) learnEnd(ctx context.Context, e *entry) {
	m.mu.Lock()
	end, kills := e.endingLocked(), e.end.oomKills
	end.Memory = e.end.memory.history(e.end.peak)
	m.mu.Unlock()
	limited, cancel := context.WithTimeout(ctx, learnLimit)
	defer cancel()
	c, away, err := m.awaitExit(limited, end.ContainerID)
	switch {
	case ctx.Err() != nil:
		return
	case err == nil:
		m.judge(ctx, &end, c, kills)
	case errors.Is(err, holdfast.ErrNotFound):
		end.Reason, end.By, end.Error = holdfast.EndEngine, holdfast.ByEngine, "the container was removed"
	default:
		end.Reason, end.By, end.Error = holdfast.EndUnknown, holdfast.ByContainer, err.Error()
	}
	if away && (end.Reason == holdfast.EndExited || end.Reason == holdfast.EndUnknown) {
		end.Reason, end.By = holdfast.EndEngine, holdfast.ByEngine // it was ending, and has ended its containers
	}
	m.deps.Reporter.Ended(end)
}

// awaitExit returns a container once the engine has noticed that it ended. away reports
// that the engine did not answer at first.
func (m *Manager) awaitExit(ctx context.Context, id string) (c engine.Container, away bool, err error) {
	for range attempts(ctx) {
		c, err = m.deps.Engine.Inspect(ctx, id)
		if err == nil && !c.Running() || errors.Is(err, holdfast.ErrNotFound) {
			return c, away, err
		}
		away = away || errors.Is(err, holdfast.ErrEngine) && ctx.Err() == nil
	}
	return c, away, errors.Join(err, ctx.Err())
}

// judge completes the ending of a container that ended without an order of this agent.
// kills is the number of its processes that the kernel has killed for memory.
func (m *Manager) judge(ctx context.Context, end *holdfast.Ending, c engine.Container, kills int) {
	code := c.ExitCode
	end.ExitCode, end.Signal = &code, signalOf(code)
	if end.OOMKills = kills; c.OOMKilled {
		end.OOMKills = max(kills, 1)
	}
	killed := end.Signal == "SIGKILL"
	asking, cancel := context.WithTimeout(ctx, exitTimeout)
	stopped, _ := m.deps.Engine.Stopped(asking, c.ID) // unknown: not stopped
	cancel()
	switch {
	case killed && end.OOMKills > 0:
		end.Reason, end.By = holdfast.EndOOM, holdfast.ByKernel
	case stopped:
		end.Reason, end.By = holdfast.EndEngine, holdfast.ByEngine
	case killed && m.deadmanFired(ctx, end.At):
		end.Reason, end.By = holdfast.EndFenced, holdfast.ByDeadman
	case killed && m.deps.Lease() == 0:
		end.Reason, end.By = fenced.reason, fenced.by
	default:
		end.Reason, end.By, end.Error = holdfast.EndExited, holdfast.ByContainer, c.Error
	}
}

// deadmanFired reports whether the deadman has killed containers at about that time. The
// deadman tells that at the next renewal of its deadline.
func (m *Manager) deadmanFired(ctx context.Context, at time.Time) bool {
	ctx, cancel := context.WithTimeout(ctx, fenceLook)
	defer cancel()
	for range attempts(ctx) {
		if fired := m.deps.DeadmanFired(); !fired.IsZero() {
			return at.Sub(fired).Abs() < fenceSlack
		}
		if !m.cfg.Others {
			return false
		}
	}
	return false
}

// signalOf returns the name of the signal that an exit code stands for, "" if it does not
// (128 and the signal's number, as shells and engines count).
func signalOf(code int) string {
	if code <= 128 {
		return ""
	}
	return unix.SignalName(unix.Signal(code - 128))
}

// reportBoot reports why a session did not boot.
func (m *Manager) reportBoot(b *attempt, err, canceled error) {
	end := holdfast.Ending{
		Key: b.e.key, Epoch: b.owner.Epoch, Template: b.e.template.Name, ContainerID: b.container, At: time.Now().UTC(),
		Reason: holdfast.EndBootFailed, By: holdfast.ByAgent, Error: err.Error(), Log: b.output,
	}
	if boot, ok := errors.AsType[*holdfast.BootError](err); ok {
		end.Phase, end.Error = boot.Phase, boot.Err.Error()
	}
	if c := b.exited; c != nil {
		code := c.ExitCode
		end.By, end.ExitCode, end.Signal = holdfast.ByContainer, &code, signalOf(code)
		if c.OOMKilled {
			end.By, end.OOMKills = holdfast.ByKernel, 1
		}
	}
	switch {
	case errors.Is(canceled, errStopped):
		end.Reason, end.By = holdfast.EndStopped, holdfast.ByUser
	case errors.Is(canceled, ErrLeaseLost):
		end.Reason, end.By = fenced.reason, fenced.by
	case errors.Is(canceled, errDisowned):
		end.Reason, end.By = holdfast.EndDisowned, holdfast.ByAgent
	case errors.Is(canceled, holdfast.ErrDraining):
		end.Reason, end.By = holdfast.EndDrained, holdfast.ByDrain
	case canceled != nil:
		end.Reason, end.By = holdfast.EndUnknown, holdfast.ByAgent // the agent ends
	case errors.Is(err, engine.ErrInterrupted):
		end.Reason, end.By = holdfast.EndEngine, holdfast.ByEngine
	}
	m.deps.Reporter.Ended(end)
}

// reportEarlier reports how sessions ended under an earlier agent, or while no agent ran,
// as far as their containers and records tell. It is called before anything is killed or
// removed.
func (m *Manager) reportEarlier(ctx context.Context, containers []engine.Container, taken map[string]bool, owners map[holdfast.SessionKey]holdfast.Owner) {
	ctx, cancel := context.WithTimeout(ctx, earlierLimit)
	defer cancel()
	records := map[string]holdfast.Owner{} // by container
	for _, o := range owners {
		records[o.ContainerID] = o
	}
	seen := map[holdfast.SessionKey]bool{}
	var asking errgroup.Group
	asking.SetLimit(orphanCalls)
	for _, c := range containers {
		o, known := records[c.ID]
		if c.Labels[LabelStep] != "" || c.Labels[LabelWarm] != "" && !known {
			continue
		}
		if !known {
			o = holdfast.Owner{Key: holdfast.SessionKey(c.Labels[LabelSession]), Epoch: epochOf(c), Template: c.Labels[LabelTemplate], ContainerID: c.ID}
			if now, ok := owners[o.Key]; ok && now.Epoch == o.Epoch { // its boot was not done
				o = now
			}
		}
		seen[o.Key] = true
		if taken[c.ID] || m.deps.Reporter.Knows(o.Key, o.Epoch) {
			continue
		}
		asking.Go(func() error {
			m.deps.Reporter.Ended(m.earlierEnd(ctx, c, o))
			return nil
		})
	}
	_ = asking.Wait() // the functions return no error
	for key, o := range owners {
		if !seen[key] && !m.deps.Reporter.Knows(key, o.Epoch) {
			end := endOf(o)
			end.Error = "its container is gone"
			m.deps.Reporter.Ended(end)
		}
	}
}

// endOf returns an ending without a reason.
func endOf(o holdfast.Owner) holdfast.Ending {
	return holdfast.Ending{
		Key: o.Key, Epoch: o.Epoch, Template: o.Template, ContainerID: o.ContainerID, ReadyAt: o.ReadyAt,
		At: time.Now().UTC(), Reason: holdfast.EndUnknown, By: holdfast.ByAgent,
	}
}

// earlierEnd returns how a container of an earlier agent has ended, or why it is about to
// be killed. The record has no state if it is gone.
func (m *Manager) earlierEnd(ctx context.Context, listed engine.Container, o holdfast.Owner) holdfast.Ending {
	end := endOf(o)
	end.ContainerID = listed.ID
	switch o.State {
	case holdfast.Leaving:
		end.Error = "the agent ended while it ended the session"
		return end
	case holdfast.Claimed, holdfast.Starting:
		end.Reason, end.Error = holdfast.EndBootFailed, "the agent ended during the boot"
		limited, cancel := context.WithTimeout(ctx, earlierLog)
		end.Log = m.lastOutput(limited, listed.ID)
		cancel()
		return end
	}
	c, err := m.deps.Engine.Inspect(ctx, listed.ID)
	switch {
	case err != nil:
		end.Error = err.Error()
	case c.Running():
		end.Reason, end.By = holdfast.EndDisowned, holdfast.ByAgent
	case c.StartedAt.IsZero():
		end.Reason, end.Error = holdfast.EndBootFailed, "the agent ended during the boot"
	case c.StartedAt.Before(time.Now().Add(-time.Duration(boottime.Now()))):
		end.Reason, end.By, end.Error = holdfast.EndNodeLost, holdfast.ByKernel, "the host was restarted"
	default:
		if !c.FinishedAt.IsZero() {
			end.At = c.FinishedAt.UTC()
		}
		m.judge(ctx, &end, c, 0)
	}
	return end
}
