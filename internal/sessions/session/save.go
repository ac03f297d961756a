package session

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast"
	"holdfast/internal/sessions/move"
)

// Saves are the sessions of a batch that are saved before their release.
type Saves struct {
	b       *Batch
	until   time.Time
	plan    move.Plan
	entries []*entry // of plan.Save, in the same order

	mu     sync.Mutex
	report holdfast.SaveReport
}

// Keep removes the sessions from the batch that can be saved until the given time, so
// that the kill of the batch does not wait for them. It is called right after
// MarkTerminating. It returns nil if there is nothing to save.
func (b *Batch) Keep(until time.Time) *Saves {
	var all []move.Departing
	if b.m.deps.Mover == nil {
		return nil
	}
	b.m.mu.Lock()
	for _, e := range b.entries {
		if e.template.SaveMemory {
			all = append(all, e.departingLocked())
		}
	}
	b.m.mu.Unlock()
	if len(all) == 0 {
		return nil
	}
	s := &Saves{b: b, until: until, plan: b.m.deps.Mover.Plan(until, all)}
	for _, d := range s.plan.Save {
		i := slices.IndexFunc(b.entries, func(e *entry) bool { return e.key == d.Owner.Key })
		s.entries = append(s.entries, b.entries[i])
		b.entries = slices.Delete(b.entries, i, i+1)
	}
	for _, l := range s.plan.Lost {
		b.m.deps.Metrics.saves.WithLabelValues("left").Observe(0)
		b.m.log.Warn("a session's memory is lost: it is not saved", "session", l.Key, "epoch", l.Epoch, "bytes", l.Bytes, "reason", l.Reason)
	}
	return s
}

// Count returns the number of sessions to be saved.
func (s *Saves) Count() int { return len(s.entries) }

// Run saves the sessions. It hands each one over as soon as it is saved or the save
// has failed: it is killed and seen dead, its snapshot is taken, and it is released.
// Run may run in parallel with the batch's other methods. What it could not release is
// left to a later Release. It is called once.
func (s *Saves) Run(ctx context.Context) holdfast.SaveReport {
	begun := time.Now()
	s.report.Kill = holdfast.KillReport{Dead: []string{}, Left: []holdfast.Leftover{}}
	s.report.Snapshots.Failed = []holdfast.SnapshotFailure{}
	s.report.Memory = holdfast.MemoryReport{Estimated: holdfast.Millis(s.plan.Takes), Lost: append([]holdfast.LostMemory{}, s.plan.Lost...)}
	saving, cancel := context.WithDeadline(ctx, s.until)
	defer cancel()
	var g errgroup.Group
	g.SetLimit(max(1, s.plan.Lanes))
	for i, e := range s.entries {
		g.Go(func() error {
			s.save(saving, s.plan.Save[i], e)
			s.handOver(ctx, e)
			return nil
		})
	}
	_ = g.Wait() // the functions return no error
	s.report.Memory.Took = holdfast.Millis(time.Since(begun))
	return s.report
}

// save saves one session, or records why it failed.
func (s *Saves) save(ctx context.Context, d move.Departing, e *entry) {
	m, begun := s.b.m, time.Now()
	m.announceSaving(ctx, e, "")
	n, err := m.deps.Mover.Save(ctx, d)
	m.endSaving(e)
	m.deps.Metrics.saves.WithLabelValues(outcomeOf(err)).Observe(time.Since(begun).Seconds())
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.report.Memory.Lost = append(s.report.Memory.Lost, holdfast.LostMemory{Key: d.Owner.Key, Epoch: d.Owner.Epoch, Bytes: d.Bytes, Reason: reason(err)})
		m.log.Warn("a session's memory is lost: its container was not saved", "session", d.Owner.Key, "epoch", d.Owner.Epoch, "err", err)
		return
	}
	s.report.Memory.Saved++
	s.report.Memory.Bytes += n
	m.log.Info("session saved", "session", d.Owner.Key, "epoch", d.Owner.Epoch, "bytes", n, "estimated", d.Bytes, "took", time.Since(begun).Round(time.Millisecond))
}

// handOver kills one session, saved or not, and releases it.
func (s *Saves) handOver(ctx context.Context, e *entry) {
	m := s.b.m
	kill := m.deps.Killer.Kill(ctx, targets([]*entry{e}))
	dead := m.seenDead([]*entry{e}, kill)
	s.mu.Lock()
	s.report.Kill.Dead = append(s.report.Kill.Dead, kill.Dead...)
	s.report.Kill.Left = append(s.report.Kill.Left, kill.Left...)
	s.mu.Unlock()
	if len(dead) == 0 {
		return
	}
	if with, _ := m.splitBySnapshot(dead); len(with) > 0 {
		s.tookSnapshot(e, m.snap(ctx, e))
	}
	if err := m.releaseDead(ctx, dead); err != nil {
		m.log.Debug("a saved session is not released yet", "session", e.key, "err", err)
		s.b.mu.Lock()
		defer s.b.mu.Unlock()
		s.b.saved = append(s.b.saved, e)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Released++
}

func (s *Saves) tookSnapshot(e *entry, shot snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.report.Snapshots
	r.Count++
	r.Took += shot.took
	r.Longest = max(r.Longest, shot.took)
	if shot.err != nil {
		r.Failed = append(r.Failed, shot.failure(e))
	}
}

func (s snapshot) failure(e *entry) holdfast.SnapshotFailure {
	return holdfast.SnapshotFailure{Key: e.key, Epoch: e.owner.Epoch, Took: s.took, Reason: reason(s.err), Output: s.output}
}

// Move is Stop for a session that continues on another node. If its template saves
// memory and there is time until the moment until, Move saves the memory before it
// kills the container. Lost memory is in the report and is not an error. Errors:
// holdfast.ErrNotFound, and one that wraps holdfast.ErrBusy if the session is not
// ready.
func (m *Manager) Move(ctx context.Context, key holdfast.SessionKey, until time.Time) (holdfast.MoveReport, error) {
	m.mu.Lock()
	e := m.sessions[key]
	if e == nil || e.phase == failed {
		m.mu.Unlock()
		return holdfast.MoveReport{}, fmt.Errorf("session %s: %w", key, holdfast.ErrNotFound)
	}
	if e.phase != ready {
		m.mu.Unlock()
		return holdfast.MoveReport{}, fmt.Errorf("session %s boots or leaves: %w", key, holdfast.ErrBusy)
	}
	b := &Batch{m: m, entries: m.markLocked(cause{reason: holdfast.EndMoved, by: holdfast.ByUser}, e)}
	m.mu.Unlock()
	m.announce(ctx, b.entries...)
	begun := time.Now()
	var r holdfast.MoveReport
	// A move that has begun is finished even if ctx ends.
	ending := context.WithoutCancel(ctx)
	if s := b.Keep(until); s != nil {
		saved := s.Run(ending)
		b.ReleaseLater()
		r.Memory, r.KillReport = saved.Memory, saved.Kill
		r.Steps = append(r.Steps, holdfast.Step{Name: "save", Took: saved.Memory.Took, Count: saved.Memory.Saved})
	}
	if len(b.entries) > 0 { // not saved
		r.KillReport = m.end(ending, slices.Clone(b.entries))
	}
	r.Took = holdfast.Millis(time.Since(begun))
	if len(r.Left) > 0 {
		return r, nil
	}
	return r, m.await(ctx, e, e.gone)
}
