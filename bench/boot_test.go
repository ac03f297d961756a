package bench

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/platform/engine"
)

func TestBurstsAreComparedByRank(t *testing.T) {
	none := [][]float64{{100, 200, 300}, {110, 210, 310}, {120, 220, 320}}
	good := &BurstDetails{Sessions: 3, Warm: 1}
	good.compare(none, [][]float64{{5, 150, 300}, {6, 160, 290}, {4, 150, 280}})
	if w := good.Worst; w.Rank != 3 || w.None != 310 || w.Warm != 290 || w.Ratio >= 1 || len(good.Rounds) != 3 || good.Rounds[1].Warm.P50 != 160 {
		t.Errorf("%+v", good)
	}
	// One in the middle waits longer, though neither the median of all nor the longest
	// wait says so.
	bad := &BurstDetails{Sessions: 3, Warm: 1}
	bad.compare(none, [][]float64{{5, 250, 300}, {6, 250, 290}, {4, 250, 280}})
	if w := bad.Worst; w.Rank != 2 || w.Ratio <= 1 {
		t.Errorf("%+v", bad)
	}
	if all := strings.Join(bad.notes(), "\n"); !strings.Contains(all, "1.19 times") || !strings.Contains(all, "rounds: 300 to 320") {
		t.Error(all)
	}
}

func TestBootOptions(t *testing.T) {
	good := BootOptions{N: 1, Rate: 1, BurstRounds: 1}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	for name, bad := range map[string]BootOptions{
		"no boots":          {Rate: 1, BurstRounds: 1},
		"no rate":           {N: 1, BurstRounds: 1},
		"too many claims":   {N: 1, Rate: 1, BurstRounds: 1, Claims: 257},
		"no rounds":         {N: 1, Rate: 1, Burst: 1, Warm: 1},
		"nothing warm":      {N: 1, Rate: 1, Burst: 1, BurstRounds: 1},
		"too large a burst": {N: 1, Rate: 1, Burst: 1001, Warm: 1, BurstRounds: 1},
		"unknown bursts":    {N: 1, Rate: 1, BurstRounds: 1, Bursts: []string{"cold", "hot"}},
		"refill below 0":    {N: 1, Rate: 1, BurstRounds: 1, Refill: -1},
		"memory of one":     {N: 1, Rate: 1, BurstRounds: 1, Memory: 1},
	} {
		if bad.Check() == nil {
			t.Errorf("%s is no mistake", name)
		}
	}
}

// gone is an engine that records removals.
type gone struct {
	engine.Engine
	mu  sync.Mutex
	ids []string
}

func (g *gone) Remove(_ context.Context, id string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ids = append(g.ids, id)
	return nil
}

// A session that did not boot has no container, and does not end the measurement.
func TestSessionsWithoutAContainer(t *testing.T) {
	var g gone
	list := []api.Session{{}, {Owner: holdfast.Owner{ContainerID: "c"}}}
	if err := (&bootBench{}).removeAll(t.Context(), &bootAgent{engine: &g}, list); err != nil || !slices.Equal(g.ids, []string{"c"}) {
		t.Errorf("%q are removed, %v", g.ids, err)
	}
}
