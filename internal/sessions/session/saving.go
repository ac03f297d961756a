package session

import (
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

// announceSaving writes to the session's record that its memory is being saved. If the
// agent ends before it has released the session, the next agent finds that.
func (m *Manager) announceSaving(ctx context.Context, e *entry) {
	m.mu.Lock()
	e.owner.Memory = holdfast.Saving
	m.mu.Unlock()
	m.announce(ctx, e)
}

// endSaving records that this agent knows what became of the session's memory.
func (m *Manager) endSaving(e *entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e.owner.Memory = ""
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
		note := m.savedOf(o)
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
			m.log.Info("the agent before this one ended while it saved a session's memory", "session", o.Key, "epoch", o.Epoch, "image", note.Lost == "")
		}
	}
	return rest, nil
}

// savedOf returns the note for the next claim of a session whose agent ended while it
// saved the memory.
func (m *Manager) savedOf(o holdfast.Owner) holdfast.Suspended {
	if m.deps.Mover != nil {
		if s, ok := m.deps.Mover.Saved(o); ok {
			return s
		}
	}
	now := time.Now().UTC()
	return holdfast.Suspended{
		Key: o.Key, Epoch: o.Epoch, Node: o.Node, Template: o.Template, TakenAt: now, Until: now.Add(lostNoteLifetime),
		Lost: fmt.Sprintf("the agent of node %s ended while it saved the memory", o.Node),
	}
}
