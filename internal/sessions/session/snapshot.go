package session

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/sessions/hook"
)

// leaseGeneration lasts as long as one lease of the node. No snapshot is taken of
// sessions of an ended generation, because another node may own them.
type leaseGeneration struct {
	context.Context
	end context.CancelCauseFunc
}

func newLeaseGeneration() leaseGeneration {
	ctx, end := context.WithCancelCause(context.Background())
	return leaseGeneration{ctx, end}
}

// snapshot is the result of a session's snapshot command. The zero value means that it
// has not run.
type snapshot struct {
	done   bool
	took   holdfast.Millis
	err    error
	output string
}

// problem returns what an operator should know about it, or "" if it succeeded.
func (s snapshot) problem() string {
	if s.err == nil {
		return ""
	}
	return "the snapshot failed: " + s.err.Error()
}

// snapshotOf returns the snapshot command of a template in the present configuration.
func (m *Manager) snapshotOf(template string) Snapshot {
	for _, t := range m.cfg.Templates {
		if t.Name == template {
			return t.Snapshot
		}
	}
	return Snapshot{}
}

// splitBySnapshot separates the sessions with a pending snapshot from the others.
func (m *Manager) splitBySnapshot(dead []*entry) (with, without []*entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range dead {
		if e.snapshotDueLocked() {
			with = append(with, e)
		} else {
			without = append(without, e)
		}
	}
	return with, without
}

// snapshotDueLocked reports whether the session's snapshot is pending or running.
func (e *entry) snapshotDueLocked() bool {
	return len(e.template.Snapshot.Command) > 0 && !e.snapshot.done && e.generation.Context != nil && e.generation.Err() == nil
}

// snapAndRelease takes the snapshot of a dead session and releases it. If the Manager
// ends during the snapshot, the session stays owned: the next agent finds it and takes
// the snapshot again.
func (m *Manager) snapAndRelease(ctx context.Context, e *entry) {
	if with, _ := m.splitBySnapshot([]*entry{e}); len(with) > 0 {
		m.snap(ctx, e)
		if ctx.Err() != nil && e.generation.Err() == nil {
			return
		}
	}
	m.releaseUntilDone(ctx, []*entry{e})
}

// snap waits for a slot and runs the session's snapshot command, until ctx is done at
// the latest. The session is released whatever the result is.
func (m *Manager) snap(ctx context.Context, e *entry) snapshot {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(e.generation, func() { cancel(context.Cause(e.generation)) })
	defer stop()
	s := snapshot{done: true}
	select {
	case m.snaps <- struct{}{}:
		s = m.runSnapshot(ctx, e)
		<-m.snaps
	case <-ctx.Done():
		s.err = fmt.Errorf("there was no time for it: %w", context.Cause(ctx))
	}
	if s.err != nil {
		m.log.Warn("snapshot failed; the session is released anyway", "session", e.key, "epoch", e.owner.Epoch, "took", s.took, "err", s.err, "output", s.output)
	}
	m.deps.Metrics.snaps.WithLabelValues(outcomeOf(s.err)).Observe(time.Duration(s.took).Seconds())
	m.mu.Lock()
	e.snapshot = s
	m.mu.Unlock()
	return s
}

func (m *Manager) runSnapshot(ctx context.Context, e *entry) snapshot {
	ctx, cancel := context.WithTimeout(ctx, e.template.Snapshot.Timeout)
	defer cancel()
	m.mu.Lock()
	o := e.owner
	m.mu.Unlock()
	until, _ := ctx.Deadline()
	r := m.deps.Hooks.Run(ctx, e.template.Snapshot.command(o, until))
	return snapshot{done: true, took: holdfast.Millis(r.Took), err: r.Err, output: r.Output}
}

// command returns the snapshot command for the session of a record.
func (s Snapshot) command(o holdfast.Owner, until time.Time) hook.Command {
	epoch := strconv.FormatInt(int64(o.Epoch), 10)
	fill := strings.NewReplacer("{key}", string(o.Key), "{epoch}", epoch)
	c := hook.Command{Env: []string{
		"HOLDFAST_SESSION=" + string(o.Key),
		"HOLDFAST_EPOCH=" + epoch,
		"HOLDFAST_CONTAINER=" + o.ContainerID,
		"HOLDFAST_TEMPLATE=" + o.Template,
		"HOLDFAST_NODE=" + string(o.Node),
		"HOLDFAST_DEADLINE=" + until.UTC().Format(time.RFC3339),
		"HOLDFAST_DEADLINE_SECONDS=" + strconv.Itoa(int(math.Floor(time.Until(until).Seconds()))),
	}}
	for _, arg := range s.Command {
		c.Args = append(c.Args, fill.Replace(arg))
	}
	return c
}

// dueForSnapshot separates the records whose session has run and whose template has a
// snapshot command from the others.
func (m *Manager) dueForSnapshot(owners []holdfast.Owner) (due, others []holdfast.Owner) {
	for _, o := range owners {
		if len(m.snapshotOf(o.Template).Command) > 0 && o.ContainerID != "" {
			due = append(due, o)
		} else {
			others = append(others, o)
		}
	}
	return due, others
}

// keepForSnapshot creates entries for records whose container was found dead, so that
// Run takes their snapshots. An earlier agent may have taken the snapshot without
// releasing the session.
func (m *Manager) keepForSnapshot(due []holdfast.Owner) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range due {
		e := newLeavingEntry(o)
		e.template.Snapshot, e.generation = m.snapshotOf(o.Template), m.generation
		e.route.ContainerID = o.ContainerID
		e.markDeadLocked()
		m.sessions[o.Key] = e
	}
}

// Snapshot runs the snapshot commands of the sessions that were seen dead, a few at a
// time. When ctx is done, the remaining ones fail. No session waits for another
// session's snapshot: each is released right after its own, and sessions without a
// snapshot are released first.
func (b *Batch) Snapshot(ctx context.Context) holdfast.SnapshotReport {
	with, without := b.m.splitBySnapshot(b.dead)
	if len(with) == 0 {
		return holdfast.SnapshotReport{}
	}
	begun := time.Now()
	r := holdfast.SnapshotReport{Count: len(with), Failed: []holdfast.SnapshotFailure{}}
	var (
		mu   sync.Mutex
		left []*entry // not released: left to Release
		all  sync.WaitGroup
	)
	giveUp := func(entries []*entry) {
		err := b.m.releaseDead(ctx, entries)
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			left = append(left, entries...)
			return
		}
		b.given += len(entries)
	}
	if len(without) > 0 {
		all.Go(func() { giveUp(without) })
	}
	for _, e := range with {
		all.Go(func() {
			s := b.m.snap(ctx, e)
			giveUp([]*entry{e})
			mu.Lock()
			defer mu.Unlock()
			r.Longest = max(r.Longest, s.took)
			if s.err != nil {
				r.Failed = append(r.Failed, s.failure(e))
			}
		})
	}
	all.Wait()
	b.dead = left
	r.Took = holdfast.Millis(time.Since(begun))
	return r
}

// reason returns the text of an error for operators: Go's text of a deadline is of no
// use to them.
func reason(err error) string {
	if errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, hook.ErrTime) {
		return "there was no time for it"
	}
	return err.Error()
}
