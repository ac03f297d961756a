package fleet

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"holdfast"
	"holdfast/internal/platform/store"
)

func TestCostsByAct(t *testing.T) {
	m := measured{
		events: []event{{act: Gone, begin: 10}, {act: Notice, begin: 20}, {act: Gone, begin: 30}},
		load: &load{past: []attempt{
			{begin: 1, end: 2}, {begin: 9, end: 11}, {begin: 4, end: 12}, {begin: 12, end: 21, reason: "x"}, {begin: 31, end: 33},
		}},
	}
	all := []handover{{event: m.events[0], took: 5}, {event: m.events[0]}, {event: m.events[1], kept: true}}
	want := []Cost{{Act: Notice, Runs: 1, Failed: 1, Sessions: 1}, {Act: Gone, Runs: 2, Connected: 3, Longest: 8, Sessions: 2, Ended: 2}}
	if d := cmp.Diff(want, costs(m, all, map[Act]int{Gone: 2, Notice: 1})); d != "" {
		t.Error(d)
	}
}

// After a restore of the store the records are others, which the observer notes as changes.
func TestObserverOfARestoredStore(t *testing.T) {
	record := func(key holdfast.SessionKey, epoch holdfast.Epoch) holdfast.Owner {
		return holdfast.Owner{Key: key, Epoch: epoch, Node: "n1", State: holdfast.Ready}
	}
	o := &observer{present: map[holdfast.SessionKey]holdfast.Owner{"same": record("same", 1), "older": record("older", 5), "gone": record("gone", 6)}}
	o.note(store.Event{Restored: true, Owners: []holdfast.Owner{record("same", 1), record("older", 2), record("back", 3)}})
	if d := cmp.Diff(map[holdfast.SessionKey]holdfast.Epoch{"same": 1, "older": 2, "back": 3}, o.owned("")); d != "" {
		t.Error(d)
	}
	ended, begun := map[holdfast.SessionKey]holdfast.Epoch{}, map[holdfast.SessionKey]holdfast.Epoch{}
	for _, c := range o.changes {
		if c.gone {
			ended[c.key] = c.owner.Epoch
		} else {
			begun[c.key] = c.owner.Epoch
		}
	}
	if d := cmp.Diff(map[holdfast.SessionKey]holdfast.Epoch{"older": 5, "gone": 6}, ended); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(map[holdfast.SessionKey]holdfast.Epoch{"older": 2, "back": 3}, begun); d != "" {
		t.Error(d)
	}
}
