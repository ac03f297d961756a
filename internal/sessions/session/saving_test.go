package session

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"holdfast"
	"holdfast/test/memstore"
	"holdfast/test/poll"
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

// An agent was killed while it saved the memory of ready sessions, and their containers still
// run. The next agent takes them over. If one ends by itself, its checkpoint was under way,
// and the next claim says so; a stop leaves no note.
func TestTakenOverWhileSaving(t *testing.T) {
	s, fake := memstore.New(1000), newFakeEngine(t)
	t.Cleanup(fake.close)
	lease, _, err := s.Grant(t.Context(), 3600e9)
	if err != nil {
		t.Fatal(err)
	}
	kept := anywhere(t)
	kept.SaveMemory = true
	ids := map[holdfast.SessionKey]string{}
	for _, key := range []holdfast.SessionKey{"ends", "goes-on"} {
		o, err := s.Claim(t.Context(), holdfast.Owner{Key: key, Node: "n1", State: holdfast.Claimed, Template: kept.Name}, lease)
		if err != nil {
			t.Fatal(err)
		}
		ids[key] = ghost(t, fake, "n1", key, o.Epoch)
		o.State, o.ContainerID, o.Memory = holdfast.Ready, ids[key], holdfast.Saving
		if _, err := s.Advance(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	n := newNode(t, setup{store: s, id: "n1", engine: fake, mover: quickly(), cfg: Config{Templates: []Template{kept}}})
	for key, id := range ids {
		if i, err := n.Get(key); err != nil || i.Owner.State != holdfast.Ready || i.Owner.ContainerID != id || i.Owner.Memory != "" {
			t.Errorf("%s was not taken over: %+v, %v", key, i.Owner, err)
		}
	}
	fake.set(func() {
		if err := fake.find(ids["ends"]).cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
	})
	poll.Until(t, "the session has ended, with a note", func() bool { return len(n.notes(t)) == 1 })
	if _, err := n.Stop(t.Context(), "goes-on"); err != nil {
		t.Fatal(err)
	}
	for key, memory := range map[holdfast.SessionKey]string{"ends": "lost: the agent of node n1 ended while it saved the memory", "goes-on": ""} {
		n.serve(t, key)
		if i, err := n.Get(key); err != nil || i.Owner.Memory != memory {
			t.Errorf("%s: %q, %v; want %q", key, i.Owner.Memory, err, memory)
		}
	}
	if got := testutil.ToFloat64(n.deps.Metrics.interrupted.WithLabelValues("lost")); got != 1 {
		t.Errorf("the metric counts %v", got)
	}
}

// If the container still runs a long time after the takeover, its record says no more that
// its memory is being saved.
func TestNotSavedAfterAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(1)
		lease, _, err := s.Grant(t.Context(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		e := newEntry("a", Template{})
		if e.owner, err = s.Claim(t.Context(), holdfast.Owner{Key: "a", Node: "n1", State: holdfast.Claimed, Memory: holdfast.Saving}, lease); err != nil {
			t.Fatal(err)
		}
		m := &Manager{deps: Deps{Store: s}, log: testLog(t)}
		m.awaitSaved(t.Context(), e)
		if o, err := s.Get(t.Context(), "a"); err != nil || o.Memory != "" || o.Revision != e.owner.Revision || e.owner.Memory != "" {
			t.Errorf("%+v, %v", o, err)
		}
	})
}
