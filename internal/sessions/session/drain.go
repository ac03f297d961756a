package session

import (
	"context"
	"fmt"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/sessions/kill"
)

// ErrLeaseLost ends what depends on the node's lease: boots, and an Adopt.
var ErrLeaseLost = fmt.Errorf("the node's lease was lost: %w", holdfast.ErrStore)

// StopClaiming makes the Manager refuse new sessions with holdfast.ErrDraining and
// cancels the boots in progress. It returns the number of those boots.
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
		e.cancel(cause) // also a failed boot that is being rolled back: its error need not be remembered
	}
	return n
}

// Cordon makes the Manager refuse new sessions with holdfast.ErrDraining. Existing
// sessions and boots in progress continue.
func (m *Manager) Cordon() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.draining = true
}

// Claim accepts new sessions again after StopClaiming or Cordon.
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

// Batch is all sessions of a node at one moment, which leave together. One goroutine
// calls its methods in the order Keep, Targets, Killed, GiveUp, Snapshot, Release,
// Settle. Keep and GiveUp may be omitted.
type Batch struct {
	m       *Manager
	entries []*entry // to be killed by the caller
	dead    []*entry // dead entries that are not released
	others  []*entry // boots that are being cancelled, and sessions that another goroutine ends
	given   int      // already released, not yet returned by Release

	mu    sync.Mutex
	saved []*entry // sessions that were saved, are dead and are not released
}

// addSaved adds the saved sessions to the dead ones.
func (b *Batch) addSaved() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dead = append(b.dead, b.saved...)
	b.saved = nil
}

// MarkTerminating closes every running session to new connections. The caller kills
// the targets and then calls the batch's other methods.
func (m *Manager) MarkTerminating() *Batch {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.markTerminatingLocked(cause{reason: holdfast.EndDrained, by: holdfast.ByDrain})
}

func (m *Manager) markTerminatingLocked(why cause) *Batch {
	b := &Batch{m: m}
	for _, e := range m.sessions {
		if going := m.markLocked(why, e); len(going) > 0 {
			b.entries = append(b.entries, e)
		} else if e.phase != failed {
			b.others = append(b.others, e)
		}
	}
	b.others = append(b.others, m.detached...)
	return b
}

// Targets returns the containers that have to die.
func (b *Batch) Targets() []*kill.Target { return targets(b.entries) }

// Killed records the result of the kill.
func (b *Batch) Killed(report holdfast.KillReport) { b.dead = b.m.seenDead(b.entries, report) }

// earlyRelease bounds the first attempt to release sessions, because the engine may be
// paused meanwhile.
const earlyRelease = 500 * time.Millisecond

// GiveUp releases at once the sessions that were seen dead and have no pending
// snapshot. It returns their number. What the store does not accept within half a
// second is left to Release, which also reports it.
func (b *Batch) GiveUp(ctx context.Context) int {
	ctx, cancel := context.WithTimeout(ctx, earlyRelease)
	defer cancel()
	with, without := b.m.splitBySnapshot(b.dead)
	if len(without) == 0 || b.m.releaseDead(ctx, without) != nil {
		return 0 // Release retries and returns the error
	}
	b.dead = with
	b.given += len(without)
	return len(without)
}

// Release releases the sessions whose containers were seen dead, in as few writes as
// the store allows. It returns how many. It may be called again after an error, or
// when more containers were seen dead.
func (b *Batch) Release(ctx context.Context) (int, error) {
	n := b.given
	b.given = 0
	b.addSaved()
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

// ReleaseLater leaves the sessions that Release could not release to the Manager,
// which retries until the store is available. Otherwise their keys would stay blocked.
func (b *Batch) ReleaseLater() {
	b.addSaved()
	b.m.releaseLater(b.dead)
	b.dead = nil
}

// Settle waits for the cancelled boots and for the sessions that another goroutine was
// already ending. It returns their number, and the sessions whose containers were not
// seen dead or whose snapshots were not done when ctx ended.
func (b *Batch) Settle(ctx context.Context) (int, []holdfast.Leftover) {
	var left []holdfast.Leftover
	for _, e := range b.others {
		if err := b.m.await(ctx, e, e.gone); err == nil {
			continue
		}
		b.m.mu.Lock()
		// No process of a dead session runs, and its record may expire with the lease.
		// But its pending snapshot would be lost.
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
		return holdfast.Leftover{Name: "session " + string(e.key), Key: e.key, Reason: "its boot is not rolled back yet"}
	}
	return holdfast.Leftover{ContainerID: e.target.ID, Name: e.target.Name, Key: e.key, Reason: "it was being stopped already, and is not seen dead yet"}
}

// LeaseLost kills everything that was held under a lease that is gone, or may soon be
// gone, because another node may then own the sessions. It also kills sessions that
// other goroutines are ending, because those may wait for the unavailable store. It
// may be called during Adopt, which then fails. LeaseLost returns when none of the
// containers runs any more, or when ctx is done; in that case it has to be called
// again.
func (m *Manager) LeaseLost(ctx context.Context) {
	m.mu.Lock()
	m.endGenerationLocked() // the snapshots need not wait for the rest
	m.mu.Unlock()
	m.abortAdoption(ctx)
	m.mu.Lock()
	m.cancelBootsLocked(ErrLeaseLost)
	m.endGenerationLocked() // sessions that were adopted meanwhile
	b := m.markTerminatingLocked(fenced)
	others := retainTargetsLocked(b.others)
	m.mu.Unlock()
	m.killNow(ctx, b, others)
}

// endGenerationLocked ends the lease generation, and with it all snapshots of sessions
// that it covers.
func (m *Manager) endGenerationLocked() {
	m.generation.end(ErrLeaseLost)
	m.generation = newLeaseGeneration()
}
