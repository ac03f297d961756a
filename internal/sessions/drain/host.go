package drain

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/sessions/fleet"
	"holdfast/internal/sessions/kill"
	"holdfast/internal/sessions/session"
)

// Host is the Node of a container host: its sessions and, where requested, all other
// containers of the engine. It is used for one drain.
type Host struct {
	NodeID   holdfast.NodeID
	Sessions *session.Manager // nil: the drain is of the engine's containers only
	Engine   engine.Engine
	Opener   *kill.Opener
	Killer   *kill.Killer // leaves the engine running
	Pausing  *kill.Killer // pauses the engine meanwhile
	Fleet    *fleet.Fleet // nil: this node has no others
	Last     bool         // the agent ends after the drain
	InFlight func() (parked, requests, upgraded int)
	// Changed publishes that the node accepts no more sessions.
	Changed func()
	// Suspended returns the notes of the sessions whose images only this node has. nil: there
	// are none.
	Suspended func(ctx context.Context) ([]holdfast.Suspended, error)

	batch   *session.Batch
	saves   *session.Saves // nil: no session is saved
	foreign []*kill.Target
}

// ID implements Node.
func (h *Host) ID() holdfast.NodeID { return h.NodeID }

// StopClaiming implements Node.
func (h *Host) StopClaiming() int {
	if h.Sessions == nil {
		return 0
	}
	defer h.Changed()
	return h.Sessions.StopClaiming()
}

// Prepare implements Node: it selects and informs a successor for each ready session.
func (h *Host) Prepare(ctx context.Context) int {
	if h.Fleet == nil || h.Sessions == nil {
		return 0
	}
	var departing []fleet.Departing
	for _, i := range h.Sessions.List() {
		if i.Owner.State == holdfast.Ready {
			departing = append(departing, fleet.DepartingOf(i.Owner, i.Connections > 0))
		}
	}
	if len(departing) == 0 {
		return 0
	}
	return h.Fleet.Prepare(ctx, departing)
}

const (
	parkedPoll  = 50 * time.Millisecond
	parkedQuiet = time.Second // long enough for a client to reconnect after a 1012
)

// Choose implements Node.
func (h *Host) Choose(until time.Time) {
	if h.batch != nil && h.Fleet != nil {
		h.saves = h.batch.Keep(until)
	}
}

// Save implements Node.
func (h *Host) Save(ctx context.Context) holdfast.SaveReport {
	if h.saves == nil {
		return holdfast.SaveReport{}
	}
	return h.saves.Run(ctx)
}

// DrainConnections implements Node: it waits until no client has been parked for one
// second, while the gateway forwards parked clients to the sessions' new nodes. The
// gateway itself ends requests that are being answered. Only the last drain of an
// agent waits: after other drains the gateway goes on.
func (h *Host) DrainConnections(ctx context.Context) int {
	if h.Fleet == nil || !h.Last {
		return 0
	}
	tick := time.NewTicker(parkedPoll)
	defer tick.Stop()
	quiet := time.Now()
	for {
		parked, _, _ := h.InFlight()
		switch {
		case parked > 0:
			quiet = time.Now()
		case time.Since(quiet) >= parkedQuiet:
			return 0
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return parked
		}
	}
}

// MarkTerminating implements Node.
func (h *Host) MarkTerminating(ctx context.Context, all bool) (sessions, containers int, left []holdfast.Leftover) {
	own := map[string]bool{}
	if h.Sessions != nil {
		for _, i := range h.Sessions.List() {
			own[i.Owner.ContainerID] = true
		}
	}
	if all {
		// The engine may be slow. It is asked before the sessions are marked, with
		// half of the budget at most: the other half is for killing.
		until, _ := ctx.Deadline()
		asking, cancel := context.WithTimeout(ctx, time.Until(until)/2)
		h.foreign, left = h.openForeign(asking, own)
		cancel()
	}
	if h.Sessions != nil {
		h.batch = h.Sessions.MarkTerminating()
		sessions = len(h.batch.Targets())
	}
	return sessions, sessions + len(h.foreign), left
}

// inspectsAtOnce is the number of concurrent requests about containers to the engine.
// The engine takes long for each, and a drain has little time.
const inspectsAtOnce = 16

// openForeign opens every running container of the engine except own, and switches its
// restart policy off: otherwise the engine would restart it (moby#11065). Containers
// that cannot be opened are returned in left.
func (h *Host) openForeign(ctx context.Context, own map[string]bool) (out []*kill.Target, left []holdfast.Leftover) {
	list, err := h.Engine.List(ctx, nil)
	if err != nil {
		return nil, []holdfast.Leftover{{Name: "all other containers", Reason: "the engine cannot list them: " + err.Error()}}
	}
	var mu sync.Mutex
	var opening errgroup.Group
	opening.SetLimit(inspectsAtOnce)
	for _, c := range list {
		if own[c.ID] {
			continue
		}
		opening.Go(func() error {
			t, err := h.openOne(ctx, c.ID)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				left = append(left, holdfast.Leftover{ContainerID: c.ID, Name: c.Name, Reason: err.Error()})
			}
			if t != nil {
				out = append(out, t)
			}
			return nil
		})
	}
	_ = opening.Wait() // the functions return no error
	return out, left
}

// openOne opens one container. It returns nil for a container that does not run.
func (h *Host) openOne(ctx context.Context, id string) (*kill.Target, error) {
	c, err := h.Engine.Inspect(ctx, id)
	if errors.Is(err, holdfast.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	// A container that does not run may be between two restarts.
	if c.Restart != engine.RestartNo && c.Restart != "" {
		// A container that must not be killed, for example this agent's own,
		// keeps its policy.
		if err := h.mayKill(c); err != nil {
			return nil, err
		}
		if err := h.Engine.SetRestartPolicy(ctx, id, engine.RestartNo); err != nil && !errors.Is(err, holdfast.ErrNotFound) {
			return nil, err
		}
		if c, err = h.Engine.Inspect(ctx, id); err != nil {
			return nil, err
		}
		if c.Restart != engine.RestartNo && c.Restart != "" {
			return nil, fmt.Errorf("the engine keeps its restart policy %q", c.Restart)
		}
	}
	if c.State == "restarting" {
		// The engine has a restart pending, whatever the policy is now.
		return nil, h.Engine.Kill(ctx, id)
	}
	if !c.Running() {
		return nil, nil
	}
	t, err := h.Opener.Open(c.ID, c.Name, c.Pid)
	if errors.Is(err, kill.ErrGone) {
		return nil, nil
	}
	return t, err
}

// mayKill returns an error for a container that must not be killed.
func (h *Host) mayKill(c engine.Container) error {
	if !c.Running() {
		return nil
	}
	t, err := h.Opener.Open(c.ID, c.Name, c.Pid)
	if errors.Is(err, kill.ErrGone) {
		return nil
	}
	if err == nil {
		t.Close()
	}
	return err
}

// Kill implements Node. Sessions that were seen dead are released while the engine is
// still paused, because the engine uses all CPUs when it cleans up hundreds of dead
// containers.
func (h *Host) Kill(ctx context.Context, pauseEngine bool) holdfast.KillReport {
	all := h.foreign
	if h.batch != nil {
		all = append(h.batch.Targets(), h.foreign...)
	}
	killer := h.Killer
	if pauseEngine {
		killer = h.Pausing
	}
	killed := killer.KillPaused(ctx, all)
	if h.batch != nil {
		h.batch.Killed(killed.Report())
		killed.Step(kill.StepRelease, func() int { return h.batch.GiveUp(ctx) })
	}
	report := killed.Resume()
	for _, t := range h.foreign {
		t.Close()
	}
	return report
}

// Snapshot implements Node.
func (h *Host) Snapshot(ctx context.Context) holdfast.SnapshotReport {
	if h.batch == nil {
		return holdfast.SnapshotReport{}
	}
	return h.batch.Snapshot(ctx)
}

// Release implements Node.
func (h *Host) Release(ctx context.Context) (int, error) {
	if h.batch == nil {
		return 0, nil
	}
	return h.batch.Release(ctx)
}

// Settle implements Node.
func (h *Host) Settle(ctx context.Context) (int, []holdfast.Leftover) {
	if h.batch == nil {
		return 0, nil
	}
	// Sessions that the store did not release in time are released when it is back.
	h.batch.ReleaseLater()
	return h.batch.Settle(ctx)
}
