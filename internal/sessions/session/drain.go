package session

import (
	"context"
	"fmt"
	"slices"
	"time"

	"holdfast"
	"holdfast/internal/sessions/kill"
)

// ErrLeaseLost ends what hung on the node's lease: boots, and an Adopt.
var ErrLeaseLost = fmt.Errorf("the node's lease was lost: %w", holdfast.ErrStore)

// StopClaiming refuses new sessions from now on, with holdfast.ErrDraining, and
// tells the boots in progress to give up. It returns how many those are.
func (m *Manager) StopClaiming() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.draining = true
	return m.cancelBootsLocked(holdfast.ErrDraining)
}

func (m *Manager) cancelBootsLocked(cause error) int {
	n := 0
	for _, e := range m.sessions {
		if e.phase == booting {
			n++
		}
		e.cancel(cause) // also one that has failed and is being undone: nobody need remember it
	}
	return n
}

// Cordon refuses new sessions from now on, with holdfast.ErrDraining, and leaves
// those that this node has, the boots in progress too, as they are.
func (m *Manager) Cordon() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.draining = true
}

// Claim takes new sessions again after StopClaiming or Cordon.
func (m *Manager) Claim() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.draining = false
}

// Draining reports whether new sessions are refused.
func (m *Manager) Draining() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.draining
}

// Batch is all that a node has at one moment, to leave together. Its methods
// are called in the order Keep, Targets, Killed, GiveUp (the first and the last may
// be left out), Snapshot, Release, Settle, by one goroutine.
type Batch struct {
	m       *Manager
	entries []*entry // to be killed by whoever asked for the batch
	dead    []*entry // those of them that are dead and not given up
	others  []*entry // boots that give up, and sessions that somebody else ends
	given   int      // given up already, and not told by Release

	saved saved // what comes from Keep
}

// MarkTerminating closes every session that runs to newcomers. The caller kills the
// targets and then goes through the batch's other methods.
func (m *Manager) MarkTerminating() *Batch {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.markTerminatingLocked()
}

func (m *Manager) markTerminatingLocked() *Batch {
	b := &Batch{m: m}
	for _, e := range m.sessions {
		if going := m.markLocked(e); len(going) > 0 {
			b.entries = append(b.entries, e)
		} else if e.phase != failed {
			b.others = append(b.others, e)
		}
	}
	b.others = append(b.others, m.detached...)
	return b
}

// Targets are the containers that have to die.
func (b *Batch) Targets() []*kill.Target { return targets(b.entries) }

// Killed takes note of what became of the targets.
func (b *Batch) Killed(report holdfast.KillReport) { b.dead = b.m.seenDead(b.entries, report) }

// earlyRelease bounds the first try to give sessions up: the engine may stand
// still meanwhile.
const earlyRelease = 500 * time.Millisecond

// GiveUp gives up at once the sessions that were seen dead and have no snapshot
// to be taken, and returns how many. What the store does not take in half a second
// is Release's, as is telling of them.
func (b *Batch) GiveUp(ctx context.Context) int {
	ctx, cancel := context.WithTimeout(ctx, earlyRelease)
	defer cancel()
	with, without := b.m.splitBySnapshot(b.dead)
	if len(without) == 0 || b.m.releaseDead(ctx, without) != nil {
		return 0 // Release tries again, and has the error
	}
	b.dead = with
	b.given += len(without)
	return len(without)
}

// Release gives up the sessions whose containers were seen dead, in as few
// writes as the store allows, and returns how many. After an error, or when more
// were seen dead, it may be called again.
func (b *Batch) Release(ctx context.Context) (int, error) {
	n := b.given
	b.given = 0
	b.dead = append(b.dead, b.saved.take()...)
	if len(b.dead) == 0 {
		return n, nil
	}
	if err := b.m.releaseDead(ctx, b.dead); err != nil {
		return n, fmt.Errorf("giving up %d sessions: %w", len(b.dead), err)
	}
	n += len(b.dead)
	b.dead = nil
	return n, nil
}

// ReleaseLater leaves what Release could not do to the Manager, which goes on
// until the store is back: else nobody could ever have those sessions again.
func (b *Batch) ReleaseLater() {
	b.dead = append(b.dead, b.saved.take()...)
	b.m.releaseLater(b.dead)
	b.dead = nil
}

// Settle waits for the boots that give up, and for what somebody else was ending
// already. It returns how many those were, and those whose containers were not
// seen dead, or whose snapshots were not done, by the end of ctx.
func (b *Batch) Settle(ctx context.Context) (int, []holdfast.Leftover) {
	var left []holdfast.Leftover
	for _, e := range b.others {
		if err := b.m.await(ctx, e, e.gone); err == nil {
			continue
		}
		b.m.mu.Lock()
		// Nothing runs of one that is dead, and its record may go with the
		// lease; but with that would go a snapshot that is still due.
		if !e.isDead() || e.snapshotDueLocked() {
			left = append(left, e.leftoverLocked())
		}
		b.m.mu.Unlock()
	}
	return len(b.others), left
}

func (e *entry) leftoverLocked() holdfast.Leftover {
	if e.isDead() {
		return holdfast.Leftover{ContainerID: e.owner.ContainerID, Name: "session " + string(e.key), Key: e.key, Reason: "it is dead, and its snapshot is not done yet"}
	}
	if len(e.stuckContainers) > 0 {
		return holdfast.Leftover{ContainerID: e.stuckContainers[0], Name: "session " + string(e.key), Key: e.key, Reason: "an earlier agent started it, and it cannot be seen dead"}
	}
	if e.target == nil {
		return holdfast.Leftover{Name: "session " + string(e.key), Key: e.key, Reason: "its boot is not undone yet"}
	}
	return holdfast.Leftover{ContainerID: e.target.ID, Name: e.target.Name, Key: e.key, Reason: "it was being stopped already, and is not seen dead yet"}
}

// LeaseLost ends everything that was held under a lease that is gone, or may be
// soon: another node may own the sessions then. What others are ending already
// it kills too, because they may be waiting for the very store that is away. It
// may also come during Adopt, which fails then. It returns when no container of
// them runs any more, or ctx is done: then it has to be called again.
func (m *Manager) LeaseLost(ctx context.Context) {
	m.mu.Lock()
	m.endGenerationLocked() // it need not wait for the rest
	m.mu.Unlock()
	m.abortAdoption(ctx)
	m.mu.Lock()
	m.cancelBootsLocked(ErrLeaseLost)
	m.endGenerationLocked() // what was adopted meanwhile
	b := m.markTerminatingLocked()
	others := retainTargetsLocked(b.others)
	m.mu.Unlock()
	if len(b.entries)+len(others) > 0 {
		report := m.deps.Killer.Kill(ctx, targets(append(slices.Clone(b.entries), others...)))
		m.releaseLater(m.seenDead(b.entries, report))
		m.noteDead(others, report)
	}
	m.releaseTargets(others)
	for _, e := range append(slices.Clone(b.entries), b.others...) {
		if m.await(ctx, e, e.dead) != nil {
			m.log.Error("lease lost: not seen dead in time", "session", e.key)
		}
	}
}

// endGenerationLocked ends the snapshots of what was held up to now, at once.
func (m *Manager) endGenerationLocked() {
	m.generation.end(ErrLeaseLost)
	m.generation = newLeaseGeneration()
}

// noteDead takes note of what was seen dead of sessions that others end.
func (m *Manager) noteDead(entries []*entry, report holdfast.KillReport) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range entries {
		if slices.Contains(report.Dead, e.target.ID) {
			e.markDeadLocked()
		}
	}
}
