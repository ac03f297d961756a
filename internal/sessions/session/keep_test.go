package session

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
	"holdfast/test/poll"
)

// suspendedElsewhere suspends a session, and says in its note that another node has the image.
func (n *node) suspendedElsewhere(t *testing.T, key holdfast.SessionKey) holdfast.Suspended {
	t.Helper()
	if _, err := n.Start(t.Context(), key, "kept"); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Suspend(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the session has left this node", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.sessions[key] == nil
	})
	s, err := store.ChangeNote(t.Context(), n.store, store.SuspendedNotes+string(key), func(s *holdfast.Suspended) error {
		s.Node, s.WakeAt = "other", time.Now().Add(time.Hour).UTC().Truncate(time.Second)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// note returns the note of the only suspended session.
func (n *node) note(t *testing.T) (s holdfast.Suspended) {
	t.Helper()
	all := n.notes(t)
	if len(all) != 1 || json.Unmarshal(all[0].Value, &s) != nil {
		t.Fatalf("notes: %v", all)
	}
	return s
}

// The image of a suspended session moves to this node, and the session stays suspended with its
// times. If the transfer does not begin, it is as before; if it breaks off, the note says that the
// memory is lost.
func TestKeepSuspended(t *testing.T) {
	for how, want := range map[string]struct {
		node holdfast.NodeID
		lost bool
		err  bool
	}{"": {"node-1", false, false}, "refused": {"other", false, true}, "torn": {"other", true, true}} {
		t.Run("how "+how, func(t *testing.T) {
			mv := quickly()
			mv.keep = how
			n := suspendable(t, mv, 0)
			before := n.suspendedElsewhere(t, "a")
			// The watch shows the record of the suspended epoch late.
			n.ReclaimOrphan(holdfast.Owner{Key: "a", Node: n.cfg.Node, Epoch: before.Epoch})
			if err := n.KeepSuspended(t.Context(), "a", "kept"); (err != nil) != want.err {
				t.Errorf("%v", err)
			}
			after := n.note(t)
			if after.Node != want.node || (after.Lost != "") != want.lost || after.Epoch != before.Epoch || after.After <= before.Epoch ||
				!after.WakeAt.Equal(before.WakeAt) || len(n.records(t)) != 0 {
				t.Errorf("%+v, before %+v; records %v", after, before, n.records(t))
			}
			again, err := n.Start(t.Context(), "a", "")
			if err != nil || again.Owner.Template != "kept" || len(mv.left) == 1 == want.lost {
				t.Errorf("%+v, %v; Stage received %+v", again, err, mv.left)
			}
		})
	}
}

func TestKeepOfWhatIsNotSuspended(t *testing.T) {
	n := suspendable(t, quickly(), 0)
	if err := n.KeepSuspended(t.Context(), "a", "kept"); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("%v", err)
	}
	n.serve(t, "a")
	if err := n.KeepSuspended(t.Context(), "a", "kept"); !errors.Is(err, holdfast.ErrBusy) {
		t.Errorf("%v", err)
	}
	if err := n.KeepSuspended(t.Context(), "b", "unknown"); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("%v", err)
	}
	n.StopClaiming()
	if err := n.KeepSuspended(t.Context(), "b", "kept"); !errors.Is(err, holdfast.ErrDraining) {
		t.Errorf("%v", err)
	}
}
