package session

import (
	"testing"
	"time"

	"holdfast"
)

// A record is written when it has changed, or every fifth interval.
func TestRecordIsDue(t *testing.T) {
	began := time.Unix(100, 0)
	node := holdfast.Node{ID: "a", Sessions: 3, CPULoad: 0.5, Pressure: 0.2, Memory: holdfast.Memory{Total: 1000, Available: 500}, Since: began, SeenAt: began}
	changed := func(f func(*holdfast.Node)) holdfast.Node {
		n := node
		f(&n)
		return n
	}
	for name, c := range map[string]struct {
		node  holdfast.Node
		after time.Duration
		want  bool
	}{
		"nothing has changed": {changed(func(n *holdfast.Node) { n.SeenAt = began.Add(time.Second) }), 4 * time.Second, false},
		"after five seconds":  {node, 5 * time.Second, true},
		"figures have changed a little": {changed(func(n *holdfast.Node) {
			n.CPULoad, n.Pressure, n.Memory.Available = 0.55, 0.15, 450
		}), time.Second, false},
		"the load has changed":   {changed(func(n *holdfast.Node) { n.CPULoad = 0.61 }), time.Second, true},
		"the memory has changed": {changed(func(n *holdfast.Node) { n.Memory.Available = 350 }), time.Second, true},
		"a session more":         {changed(func(n *holdfast.Node) { n.Sessions++ }), time.Second, true},
		"it drains":              {changed(func(n *holdfast.Node) { n.Draining = true }), time.Second, true},
		"it is slow":             {changed(func(n *holdfast.Node) { n.Degraded = "storm" }), time.Second, true},
	} {
		r := record{7, node, began}
		if got := r.due(7, c.node, began.Add(c.after), time.Second); got != c.want {
			t.Errorf("%s: due %v, want %v", name, got, c.want)
		}
	}
	r := record{7, node, began}
	if !r.due(8, node, began, time.Second) {
		t.Error("the record is not written under another lease")
	}
	if none := (record{}); !none.due(7, node, began, time.Second) {
		t.Error("the first record is not written")
	}
}

// An agent that has read one record of another writer writes at each interval for a time.
func TestForeignRecordMakesAnAgentSuspicious(t *testing.T) {
	var w ownWrites
	w.add(time.Unix(1, 0))
	now := time.Unix(100, 0)
	if w.suspects(now, time.Second) {
		t.Error("it suspects another agent without a record of one")
	}
	if w.cloned(holdfast.Node{SeenAt: time.Unix(2, 0)}, now, time.Second) {
		t.Error("one record proves another agent")
	}
	if !w.suspects(now.Add(30*time.Second), time.Second) || w.suspects(now.Add(31*time.Second), time.Second) {
		t.Error("it does not suspect another agent for 30 intervals")
	}
}
