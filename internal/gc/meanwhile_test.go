package gc

import (
	"strings"
	"testing"
	"time"

	"holdfast/internal/engine"
)

// TestANetworkUsedMeanwhileStays: a container had it between the look before the
// removal and the one right before, and is gone again.
func TestANetworkUsedMeanwhileStays(t *testing.T) {
	m := newModel(time.Now().Add(-100 * time.Hour))
	id := m.addNetwork()
	c := imagesPolicy()
	c.Rules = []Rule{{Kinds: []Kind{Networks}, KeepFor: time.Hour}}
	col := hosted(t, c, m, nil, quietLog(), 1000)
	if err := col.d.Store.Note(Uses{Last: map[string]time.Time{networkKey(id): time.Now().Add(-2 * time.Hour)}}); err != nil {
		t.Fatal(err)
	}
	asked := 0
	m.between = func(*model) {
		if asked++; asked == 4 { // the plan has the containers, the images and the networks
			col.tracker.note(t.Context(), engine.Activity{Time: time.Now(), Action: "connect", Network: id})
		}
	}
	cy, err := col.Collect(t.Context(), ByHand, nil)
	if err != nil || cy.Planned != 1 || len(m.networks) != 1 || len(cy.Skipped) != 1 || !strings.Contains(cy.Skipped[0].Reason, "used meanwhile") {
		t.Errorf("%+v, %v", cy, err)
	}
}
