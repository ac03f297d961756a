// Package drain hands over everything that a node owns, within a budget, and
// reports what each step took and what was left behind.
package drain

import (
	"context"
	"fmt"
	"time"

	"holdfast"
	"holdfast/internal/platform/tasks"
)

// Node is what a drain acts on. One goroutine calls its methods in this order, except
// for Save.
type Node interface {
	ID() holdfast.NodeID

	// StopClaiming refuses new sessions and tells the boots in progress to give up.
	// It returns the number of these boots.
	StopClaiming() int

	// Prepare announces the sessions to their successors, so that these can get
	// ready. It returns the number of announced sessions, at the latest when ctx is
	// done.
	Prepare(ctx context.Context) int

	// MarkTerminating closes the sessions to new clients. It returns the number of
	// sessions and of containers that have to die. With all set, these are all
	// containers of the engine, also of other clients, after their restart policies
	// are switched off. left are the containers that could not be opened.
	MarkTerminating(ctx context.Context, all bool) (sessions, containers int, left []holdfast.Leftover)

	// Choose selects the sessions whose memory is saved until the given time. Kill and
	// the later steps are for the others then.
	Choose(until time.Time)

	// Save saves the memory of the selected sessions. It hands each over as soon as it
	// is saved, or has failed. Another goroutine calls it, beside Kill and the later
	// steps; Settle is called after it. The last Release gives up the sessions that
	// Save could not give up.
	Save(ctx context.Context) holdfast.SaveReport

	// Kill kills the marked containers and verifies that they are dead.
	Kill(ctx context.Context, pauseEngine bool) holdfast.KillReport

	// Snapshot runs the snapshot commands of the sessions seen dead, and may give up
	// the sessions whose commands have ended. Commands that still run when ctx is done
	// have failed.
	Snapshot(ctx context.Context) holdfast.SnapshotReport

	// Release gives up the sessions seen dead and returns their number. After an error
	// it is called again for the rest.
	Release(ctx context.Context) (int, error)

	// Settle waits for the boots that were told to give up, and for the sessions that
	// were ending before the drain began. It returns their number, and those that were
	// not seen dead.
	Settle(ctx context.Context) (int, []holdfast.Leftover)

	// HandOverSuspended moves the images of the sessions that are suspended on this node to
	// others, as far as the time until ctx is done allows. It returns their number, and why
	// others stay.
	HandOverSuspended(ctx context.Context) (int, string)

	// DrainConnections goes on serving the clients that wait for sessions on their new
	// nodes, until no client waits or ctx is done. It returns the number of clients
	// that still wait.
	DrainConnections(ctx context.Context) int
}

// Options are the choices of one drain.
type Options struct {
	Budget      time.Duration // over 0; the drain leaves what is not done by then
	PauseEngine bool          // pause the engine while the containers die
	All         bool          // every container of the engine
}

// releasePause is the pause between two attempts to give sessions up.
const releasePause = 50 * time.Millisecond

// Parts of the budget: a tenth of it, and at most these durations. A node gives up
// ownership within a second of the notice. Telling the successors may take half of that
// time. The time that snapshots leave has to be enough to give sessions up.
const (
	longestPrepare = 500 * time.Millisecond
	releaseReserve = time.Second
)

func part(budget, most time.Duration) time.Duration { return min(budget/10, most) }

// Run drains the node. It calls progress, which may be nil, when a step ends. The report
// is complete also if the budget is used up.
func Run(ctx context.Context, n Node, o Options, progress func(holdfast.Step)) holdfast.DrainReport {
	ctx, cancel := context.WithTimeout(ctx, o.Budget)
	defer cancel()
	d := &run{report: holdfast.DrainReport{Node: n.ID(), Started: time.Now(), Left: []holdfast.Leftover{}}, progress: progress}

	d.step("stop claiming", n.StopClaiming)
	d.step("prepare", func() int {
		ctx, cancel := context.WithTimeout(ctx, part(o.Budget, longestPrepare))
		defer cancel()
		return n.Prepare(ctx)
	})
	d.step("mark terminating", func() int {
		sessions, containers, left := n.MarkTerminating(ctx, o.All)
		d.report.Owned = sessions
		d.report.Left = append(d.report.Left, left...)
		return containers
	})
	saving := beginSave(ctx, n, o.Budget)
	var kill holdfast.KillReport
	d.step("kill", func() int { kill = n.Kill(ctx, o.PauseEngine); return len(kill.Dead) })
	d.killed(kill)
	d.step("snapshot", func() int {
		until, _ := ctx.Deadline()
		ctx, cancel := context.WithDeadline(ctx, until.Add(-part(o.Budget, releaseReserve)))
		defer cancel()
		return d.snapshot(n.Snapshot(ctx))
	})
	d.step("release", func() int { return d.release(ctx, n) })
	d.endSave(ctx, n, saving)
	d.step("settle", func() int {
		count, left := n.Settle(ctx)
		d.report.Left = append(d.report.Left, left...)
		return count
	})
	d.report.Took = holdfast.Millis(time.Since(d.report.Started))
	d.step("suspended", func() int {
		count, notice := n.HandOverSuspended(ctx)
		d.notice(notice)
		return count
	})
	d.step("drain clients", func() int { return n.DrainConnections(ctx) })
	return d.report
}

// run is one drain.
type run struct {
	report   holdfast.DrainReport
	progress func(holdfast.Step)
}

// step times f, which returns the number of objects that it acted on.
func (d *run) step(name string, f func() int) {
	start := time.Now()
	count := f()
	d.add(holdfast.Step{Name: name, Took: holdfast.Millis(time.Since(start)), Count: count})
}

func (d *run) add(s holdfast.Step) {
	d.report.Steps = append(d.report.Steps, s)
	if d.progress != nil {
		d.progress(s)
	}
}

// killed adds the result of a kill to the report, and its parts as steps.
func (d *run) killed(k holdfast.KillReport) {
	for _, s := range k.Steps {
		s.Name = "kill: " + s.Name
		d.add(s)
	}
	d.report.Dead += len(k.Dead)
	d.report.Left = append(d.report.Left, k.Left...)
	d.notice(k.Notice)
}

// snapshot adds the results of snapshot commands to the report.
func (d *run) snapshot(s holdfast.SnapshotReport) int {
	d.report.Snapshots = merge(d.report.Snapshots, s)
	if n := len(s.Failed); n > 0 {
		d.notice(fmt.Sprintf("%d of %d snapshots failed, the first: session %s: %s", n, s.Count, s.Failed[0].Key, s.Failed[0].Reason))
	}
	return s.Count
}

// release gives up the sessions that were seen dead. While the store is unavailable, it
// tries again.
func (d *run) release(ctx context.Context, n Node) int {
	for {
		count, err := n.Release(ctx)
		d.report.Released += count
		if err == nil {
			return d.report.Released
		}
		if tasks.Sleep(ctx, releasePause) != nil {
			d.notice(fmt.Sprintf("releasing: %v", err))
			return d.report.Released
		}
	}
}

func (d *run) notice(text string) {
	if text != "" && d.report.Notice != "" {
		text = "; " + text
	}
	d.report.Notice += text
}
