package session

import (
	"testing"

	"holdfast"
	"holdfast/test/memstore"
)

// An agent was killed while it saved the memory of sessions. The next agent uses the image
// that was complete. The other sessions, with a snapshot or not, boot fresh and say why.
func TestKilledWhileSaving(t *testing.T) {
	s, fake := memstore.New(1000), newFakeEngine(t)
	t.Cleanup(fake.close)
	lease, _, err := s.Grant(t.Context(), 3600e9)
	if err != nil {
		t.Fatal(err)
	}
	kept := anywhere(t)
	kept.SaveMemory = true
	shot := kept
	shot.Name, shot.Snapshot = "shot", Snapshot{Command: []string{"true"}, Timeout: 20e9}
	epochs := map[holdfast.SessionKey]holdfast.Epoch{}
	for key, template := range map[holdfast.SessionKey]string{"complete": kept.Name, "torn": kept.Name, "shot": "shot", "stopped": kept.Name} {
		o, err := s.Claim(t.Context(), holdfast.Owner{Key: key, Node: "n1", State: holdfast.Claimed, Template: template}, lease)
		if err != nil {
			t.Fatal(err)
		}
		epochs[key] = o.Epoch
		o.State, o.ContainerID, o.Memory = holdfast.Leaving, "0123456789abcdef", holdfast.Saving
		if key == "stopped" {
			o.Memory = ""
		}
		if _, err := s.Advance(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	mv := quickly()
	mv.saved = map[holdfast.SessionKey]bool{"complete": true}
	n := newNode(t, setup{store: s, id: "n1", engine: fake, mover: mv, cfg: Config{Templates: []Template{kept, shot}}})
	n.empty(t)
	if notes := n.notes(t); len(notes) != 3 {
		t.Errorf("the notes are %v", notes)
	}
	const lost = "lost: the agent of node n1 ended while it saved the memory"
	for key, memory := range map[holdfast.SessionKey]string{"complete": "lost: it is a test's", "torn": lost, "shot": lost, "stopped": ""} {
		n.serve(t, key)
		if i, err := n.Get(key); err != nil || i.Owner.Memory != memory {
			t.Errorf("%s: %q, %v; want %q", key, i.Owner.Memory, err, memory)
		}
	}
	if len(mv.left) != 1 || mv.left[0].Key != "complete" || mv.left[0].Epoch != epochs["complete"] {
		t.Errorf("Stage received %+v", mv.left)
	}
	if notes := n.notes(t); len(notes) != 0 {
		t.Errorf("the notes are %v", notes)
	}
}
