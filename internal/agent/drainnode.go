package agent

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

// drainNode is a node as a drain acts on it: its sessions and, where asked for,
// every other container of the engine. It is good for one drain.
type drainNode struct {
	id       holdfast.NodeID
	sessions *session.Manager // nil: none, only the engine's containers
	engine   engine.Engine
	opener   *kill.Opener
	killer   *kill.Killer // leaves the engine running
	pausing  *kill.Killer
	fleet    *fleet.Fleet // nil: there are no other nodes
	last     bool         // the agent ends after it
	inFlight func() (parked, requests, upgraded int)
	changed  func() // others are to hear that the node takes no more sessions

	batch   *session.Batch
	saves   *session.Saves // nil: nothing is saved
	foreign []*kill.Target
}

func (n *drainNode) ID() holdfast.NodeID { return n.id }

func (n *drainNode) StopClaiming() int {
	if n.sessions == nil {
		return 0
	}
	defer n.changed()
	return n.sessions.StopClaiming()
}

// Prepare chooses a successor for each session that runs, and tells it.
func (n *drainNode) Prepare(ctx context.Context) int {
	if n.fleet == nil || n.sessions == nil {
		return 0
	}
	var moves []fleet.Departing
	for _, i := range n.sessions.List() {
		if i.Owner.State == holdfast.Ready {
			moves = append(moves, fleet.Departing{Owner: i.Owner, Connected: i.Connections > 0})
		}
	}
	if len(moves) == 0 {
		return 0
	}
	return n.fleet.Prepare(ctx, moves)
}

const (
	lingerPoll  = 50 * time.Millisecond
	lingerQuiet = time.Second // long enough for a client to come back after a 1012
)

// Choose implements drain.Saver.
func (n *drainNode) Choose(until time.Time) {
	if n.batch != nil && n.fleet != nil {
		n.saves = n.batch.Keep(until)
	}
}

// Save implements drain.Saver.
func (n *drainNode) Save(ctx context.Context) holdfast.SaveReport {
	if n.saves == nil {
		return holdfast.SaveReport{}
	}
	return n.saves.Run(ctx)
}

// DrainConnections goes on passing clients to the sessions' new nodes until nobody has
// waited for a second, and returns how many still did at the end. Requests that
// are being answered are the gateway's to end. Only the last drain of an agent
// needs it: after the others the gateway goes on.
func (n *drainNode) DrainConnections(ctx context.Context) int {
	if n.fleet == nil || !n.last {
		return 0
	}
	tick := time.NewTicker(lingerPoll)
	defer tick.Stop()
	quiet := time.Now()
	for {
		parked, _, _ := n.inFlight()
		switch {
		case parked > 0:
			quiet = time.Now()
		case time.Since(quiet) >= lingerQuiet:
			return 0
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return parked
		}
	}
}

func (n *drainNode) MarkTerminating(ctx context.Context, all bool) (sessions, containers int, left []holdfast.Leftover) {
	own := map[string]bool{}
	if n.sessions != nil {
		for _, i := range n.sessions.List() {
			own[i.Owner.ContainerID] = true
		}
	}
	if all {
		// Before the sessions are closed, because the engine may take its
		// time, and with half of the budget at most: they still have to
		// die then.
		until, _ := ctx.Deadline()
		asking, cancel := context.WithTimeout(ctx, time.Until(until)/2)
		n.foreign, left = n.openForeign(asking, own)
		cancel()
	}
	if n.sessions != nil {
		n.batch = n.sessions.MarkTerminating()
		sessions = len(n.batch.Targets())
	}
	return sessions, sessions + len(n.foreign), left
}

// foreignAtOnce is how many containers the engine is asked about at once. It
// takes its time for each, and a drain has little.
const foreignAtOnce = 16

// openForeign opens every running container of the engine but the given, and
// switches its restart policy off: the engine would bring it back (moby#11065).
// One that cannot be opened does not keep the rest from dying, and is left.
func (n *drainNode) openForeign(ctx context.Context, own map[string]bool) (out []*kill.Target, left []holdfast.Leftover) {
	list, err := n.engine.List(ctx, nil)
	if err != nil {
		return nil, []holdfast.Leftover{{Name: "all other containers", Reason: "they cannot be listed: " + err.Error()}}
	}
	var mu sync.Mutex
	var opening errgroup.Group
	opening.SetLimit(foreignAtOnce)
	for _, c := range list {
		if own[c.ID] {
			continue
		}
		opening.Go(func() error {
			t, err := n.openOne(ctx, c.ID)
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
	_ = opening.Wait() // none returns an error
	return out, left
}

// openOne returns nil for a container that does not run.
func (n *drainNode) openOne(ctx context.Context, id string) (*kill.Target, error) {
	c, err := n.engine.Inspect(ctx, id)
	if errors.Is(err, holdfast.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	// Also of one that does not run: it may be between two restarts.
	if c.Restart != engine.RestartNo && c.Restart != "" {
		// What must not be killed (this agent's own container, say) keeps
		// its policy too.
		if err := n.mayKill(c); err != nil {
			return nil, err
		}
		if err := n.engine.SetRestartPolicy(ctx, id, engine.RestartNo); err != nil && !errors.Is(err, holdfast.ErrNotFound) {
			return nil, err
		}
		if c, err = n.engine.Inspect(ctx, id); err != nil {
			return nil, err
		}
		if c.Restart != engine.RestartNo && c.Restart != "" {
			return nil, fmt.Errorf("the engine keeps its restart policy %q", c.Restart)
		}
	}
	if c.State == "restarting" {
		// The engine waits to start it again, whatever the policy is by now.
		return nil, n.engine.Kill(ctx, id)
	}
	if !c.Running() {
		return nil, nil
	}
	t, err := n.opener.Open(c.ID, c.Name, c.Pid)
	if errors.Is(err, kill.ErrGone) {
		return nil, nil
	}
	return t, err
}

// mayKill is why a container must not be killed, nil where it may or does not
// run.
func (n *drainNode) mayKill(c engine.Container) error {
	if !c.Running() {
		return nil
	}
	t, err := n.opener.Open(c.ID, c.Name, c.Pid)
	if errors.Is(err, kill.ErrGone) {
		return nil
	}
	if err == nil {
		t.Close()
	}
	return err
}

func (n *drainNode) Kill(ctx context.Context, pauseEngine bool) holdfast.KillReport {
	all := n.foreign
	if n.batch != nil {
		all = append(n.batch.Targets(), n.foreign...)
	}
	killer := n.killer
	if pauseEngine {
		killer = n.pausing
	}
	report := killer.KillThen(ctx, all, func(r holdfast.KillReport) int {
		if n.batch == nil {
			return 0
		}
		n.batch.Killed(r)
		return n.batch.GiveUp(ctx)
	})
	for _, t := range n.foreign {
		t.Close()
	}
	return report
}

func (n *drainNode) Snapshot(ctx context.Context) holdfast.SnapshotReport {
	if n.batch == nil {
		return holdfast.SnapshotReport{}
	}
	return n.batch.Snapshot(ctx)
}

func (n *drainNode) Release(ctx context.Context) (int, error) {
	if n.batch == nil {
		return 0, nil
	}
	return n.batch.Release(ctx)
}

func (n *drainNode) Settle(ctx context.Context) (int, []holdfast.Leftover) {
	if n.batch == nil {
		return 0, nil
	}
	// What the store did not take in time is given up when it is back.
	n.batch.ReleaseLater()
	return n.batch.Settle(ctx)
}
