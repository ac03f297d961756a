package session

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
)

// lostNoteLifetime is how long the store keeps the reason why a memory was lost, if the
// session is not claimed.
const lostNoteLifetime = 24 * time.Hour

// announceTime bounds the write that a session's memory is being saved. A save does not
// wait longer for a store that is slow or unavailable.
const announceTime = 500 * time.Millisecond

// announceSaving writes to the session's record that its memory is being saved, and a
// state; "" leaves the state. If the agent ends before it has released the session, the
// next agent finds that. It takes over the container of a session that is still ready: the
// checkpoint may not have begun.
func (m *Manager) announceSaving(ctx context.Context, e *entry, state holdfast.State) {
	ctx, cancel := context.WithTimeout(ctx, announceTime)
	defer cancel()
	_ = m.rewrite(ctx, e, func(o *holdfast.Owner) { o.Memory, o.State = holdfast.Saving, cmp.Or(state, o.State) })
}

// endSaving records that this agent knows what became of the session's memory.
func (m *Manager) endSaving(e *entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e.owner.Memory = ""
}

// awaitSaved waits for the end of a checkpoint that an earlier agent may have begun in the
// container of a session that was taken over. If the container still runs after
// suspendTime, it was not begun.
func (m *Manager) awaitSaved(ctx context.Context, e *entry) {
	wait, cancel := context.WithTimeout(ctx, suspendTime)
	defer cancel()
	if m.await(wait, e, e.left) != nil && ctx.Err() == nil {
		_ = m.rewrite(ctx, e, func(o *holdfast.Owner) { o.Memory = "" })
	}
}

// releaseSaving releases dead sessions whose agent ended while it saved their memory. It
// leaves a note for their next claim: with the image, if that is complete, or with the
// reason why the memory is lost. It returns the records that are to be released without a
// note.
func (m *Manager) releaseSaving(ctx context.Context, owners []holdfast.Owner) (rest []holdfast.Owner, err error) {
	for _, o := range owners {
		if o.Memory != holdfast.Saving {
			rest = append(rest, o)
			continue
		}
		note := m.savedOf(ctx, o)
		text, err := json.Marshal(note)
		if err == nil {
			err = m.deps.Store.Suspend(ctx, o, string(text))
		}
		switch {
		case errors.Is(err, store.ErrStale):
			rest = append(rest, o)
		case err != nil:
			return nil, fmt.Errorf("session %s: %w", o.Key, err)
		default:
			m.savingEnded(o, note.Lost)
		}
	}
	return rest, nil
}

// savedOf returns the note for the next claim of a session whose agent ended while it
// saved the memory.
func (m *Manager) savedOf(ctx context.Context, o holdfast.Owner) holdfast.Suspended {
	if m.deps.Mover != nil {
		if s, ok := m.deps.Mover.Saved(ctx, o); ok {
			m.noteWake(&s, o)
			return s
		}
	}
	now := time.Now().UTC()
	return holdfast.Suspended{
		Key: o.Key, Epoch: o.Epoch, Node: o.Node, Template: o.Template, TakenAt: now, Until: now.Add(lostNoteLifetime),
		Lost: fmt.Sprintf("the agent of node %s ended while it saved the memory", o.Node),
	}
}

// savingEnded logs and counts a session whose agent ended while it saved the memory. lost is
// "" if the image is complete.
func (m *Manager) savingEnded(o holdfast.Owner, lost string) {
	const text = "the agent before this one ended while it saved a session's memory"
	if lost == "" {
		m.deps.Metrics.interrupted.WithLabelValues("complete").Inc()
		m.log.Info(text+"; its image is complete", "session", o.Key, "epoch", o.Epoch)
		return
	}
	m.deps.Metrics.interrupted.WithLabelValues("lost").Inc()
	m.log.Warn(text+"; its memory is lost", "session", o.Key, "epoch", o.Epoch)
}
