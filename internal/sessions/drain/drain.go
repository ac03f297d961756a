// Package drain hands over everything that a node owns, within a budget, and
// reports what each step took and what was left behind.
package drain

import (
	"context"
	"fmt"
	"time"

	"holdfast"
)

// Node is what a drain acts on. Its methods are called in the order in which
// they stand here, by one goroutine; one that is a Saver has more.
type Node interface {
	ID() holdfast.NodeID

	// StopClaiming refuses new sessions and tells the boots in progress to
	// give up; it returns how many those are.
	StopClaiming() int

	// Prepare announces the sessions to their successors, so that these can get
	// ready; it returns the number of announced sessions, at the latest when ctx is done.
	Prepare(ctx context.Context) int

	// MarkTerminating closes the sessions to new clients and returns how many there
	// are and how many containers have to die. With all set, these are every
	// container of the engine, also of other clients, after the restart
	// policies are switched off; left are those that could not be opened.
	MarkTerminating(ctx context.Context, all bool) (sessions, containers int, left []holdfast.Leftover)

	// Kill kills the marked containers and verifies that they are dead.
	Kill(ctx context.Context, pauseEngine bool) holdfast.KillReport

	// Snapshot runs the snapshot commands of the sessions seen dead, and may
	// give those up whose turn is over. When ctx is done those that are not
	// have failed.
	Snapshot(ctx context.Context) holdfast.SnapshotReport

	// Release gives up the sessions seen dead and returns how many; after
	// an error it is called again for the rest.
	Release(ctx context.Context) (int, error)

	// Settle waits for the boots that were told to give up, and for sessions
	// that were ending before the drain came. It returns how many those were
	// and which of them were not seen dead.
	Settle(ctx context.Context) (int, []holdfast.Leftover)

	// DrainConnections goes on serving the clients that wait for sessions which are
	// coming up elsewhere, until none does or ctx is done; it returns how
	// many still did then.
	DrainConnections(ctx context.Context) int
}

// Options are the choices of one drain.
type Options struct {
	Budget time.Duration // over 0; what is not done by then is left
	Quiet  bool          // stop the engine for the moment in which containers die
	All    bool          // every container of the engine
}

// releasePause is between tries to give sessions up.
const releasePause = 50 * time.Millisecond

// Parts of the budget: a tenth of it, and never more than these. Ownership is to
// be given up within a second of the notice, of which telling successors may take
// half; what snapshots leave of the time has to be enough to give sessions up.
const (
	longestPrepare = 500 * time.Millisecond
	releaseReserve = time.Second
)

func part(budget, most time.Duration) time.Duration { return min(budget/10, most) }

// Run drains the node. Each step is told to progress as it ends; progress may
// be nil. The report is whole also when the budget ran out.
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
	saving := d.beginSave(ctx, n, o.Budget)
	var kill holdfast.KillReport
	d.step("kill", func() int { kill = n.Kill(ctx, o.Quiet); return len(kill.Dead) })
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
	d.step("drain clients", func() int { return n.DrainConnections(ctx) })
	return d.report
}

// run is one drain on its way.
type run struct {
	report   holdfast.DrainReport
	progress func(holdfast.Step)
}

// step times f, which returns how many things it acted on.
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

// killed takes what the kill found into the report, its parts as steps.
func (d *run) killed(k holdfast.KillReport) {
	for _, s := range k.Steps {
		s.Name = "kill: " + s.Name
		d.add(s)
	}
	d.report.Dead += len(k.Dead)
	d.report.Left = append(d.report.Left, k.Left...)
	d.notice(k.Notice)
}

// snapshot takes what the snapshot commands did into the report.
func (d *run) snapshot(s holdfast.SnapshotReport) int {
	d.report.Snapshots = merge(d.report.Snapshots, s)
	if n := len(s.Failed); n > 0 {
		d.notice(fmt.Sprintf("%d of %d snapshots failed, the first: session %s: %s", n, s.Count, s.Failed[0].Key, s.Failed[0].Reason))
	}
	return s.Count
}

// release gives up what was seen dead, again and again while the store is away.
func (d *run) release(ctx context.Context, n Node) int {
	for {
		count, err := n.Release(ctx)
		d.report.Released += count
		if err == nil {
			return d.report.Released
		}
		select {
		case <-time.After(releasePause):
		case <-ctx.Done():
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
