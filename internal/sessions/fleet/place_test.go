package fleet

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"holdfast"
)

// anyNode draws a node with random values.
func anyNode(t *rapid.T, i int) holdfast.Node {
	return holdfast.Node{
		ID:          holdfast.NodeID(fmt.Sprint("n", i)),
		PeerAddress: rapid.SampledFrom([]string{"", "h:1", "h:2"}).Draw(t, "peer"),
		Draining:    rapid.Bool().Draw(t, "draining"),
		Sessions:    rapid.IntRange(0, 5).Draw(t, "sessions"),
		Max:         rapid.IntRange(0, 4).Draw(t, "max"),
		Boots:       rapid.IntRange(-1, 9).Draw(t, "boots"),
		Slots:       rapid.IntRange(0, 4).Draw(t, "slots"),
		CPULoad:     rapid.OneOf(rapid.Float64Range(-1, 2), rapid.Just(math.NaN()), rapid.Just(math.Inf(1))).Draw(t, "load"),
		Pressure:    rapid.Float64Range(-1, 2).Draw(t, "pressure"),
		Trouble:     rapid.SampledFrom([]string{"", "", "sick"}).Draw(t, "trouble"),
	}
}

func anyFleet(t *rapid.T) ([]holdfast.Node, Need) {
	nodes := make([]holdfast.Node, rapid.IntRange(0, 6).Draw(t, "nodes"))
	need := Need{Avoid: map[holdfast.NodeID]bool{}, OutOfRotation: map[holdfast.NodeID]bool{}, Self: "n0"}
	for i := range nodes {
		nodes[i] = anyNode(t, i)
		if rapid.Bool().Draw(t, "resting") {
			need.OutOfRotation[nodes[i].ID] = true
		}
		if rapid.Bool().Draw(t, "avoid") {
			need.Avoid[nodes[i].ID] = true
		}
	}
	return nodes, need
}

func TestWeight(t *testing.T) {
	for want, n := range map[int]holdfast.Node{
		100: {Slots: 4},
		50:  {CPULoad: 1, Slots: 4},
		25:  {CPULoad: 1, Pressure: 1, Boots: 4, Slots: 4},
		1:   {Boots: 4000, Slots: 4},
	} {
		if got := Weight(&n); got != want {
			t.Errorf("%+v: %d, want %d", n, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		n := anyNode(t, 0)
		if w := Weight(&n); w < 1 || w > 100 {
			t.Fatalf("%+v: %d", n, w)
		}
	})
}

func TestPlaceTakesCandidatesOnly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes, need := anyFleet(t)
		seed := rapid.Uint64().Draw(t, "seed")
		before := slices.Clone(nodes)
		placed, err := Place(nodes, need, rand.New(rand.NewPCG(seed, 1)).IntN)
		if !slices.EqualFunc(nodes, before, func(a, b holdfast.Node) bool { return fmt.Sprint(a) == fmt.Sprint(b) }) {
			t.Fatal("Place changed the nodes")
		}
		allDrain := len(nodes) > 0
		var candidates, resting []holdfast.NodeID
		for _, n := range nodes {
			allDrain = allDrain && n.Draining
			reachable := n.PeerAddress != "" || n.ID == need.Self
			roomy := n.Max == 0 || n.Sessions < n.Max
			if reachable && roomy && n.Trouble == "" && !n.Draining && !need.Avoid[n.ID] {
				if need.OutOfRotation[n.ID] {
					resting = append(resting, n.ID)
				} else {
					candidates = append(candidates, n.ID)
				}
			}
		}
		if len(candidates) == 0 { // degraded nodes are candidates if there are no others
			candidates = resting
		}
		switch {
		case len(candidates) > 0 && (err != nil || !slices.Contains(candidates, placed.ID)):
			t.Fatalf("Place = %+v, %v; the candidates are %v", placed, err, candidates)
		case len(candidates) == 0 && allDrain && !errors.Is(err, holdfast.ErrDraining):
			t.Fatalf("all drain: %v", err)
		case len(candidates) == 0 && !allDrain && !errors.Is(err, holdfast.ErrBusy):
			t.Fatalf("no node is left: %v", err)
		}
	})
}

// TestPlaceNeverTakesTheWorst: of three or more nodes, the one that is worse than all
// others in every figure loses each comparison.
func TestPlaceNeverTakesTheWorst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var nodes []holdfast.Node
		for i := range rapid.IntRange(1, 5).Draw(t, "others") {
			nodes = append(nodes, holdfast.Node{
				ID: holdfast.NodeID(fmt.Sprint("n", i)), PeerAddress: "h", Slots: 4,
				CPULoad:  rapid.Float64Range(0, 0.9).Draw(t, "load"),
				Pressure: rapid.Float64Range(0, 0.9).Draw(t, "pressure"),
				Boots:    rapid.IntRange(0, 9).Draw(t, "boots"),
			})
		}
		nodes = append(nodes, holdfast.Node{ID: "worst", PeerAddress: "h", Slots: 4, CPULoad: 0.95, Pressure: 0.95, Boots: 10})
		seed := rapid.Uint64().Draw(t, "seed")
		if n, err := Place(nodes, Need{}, rand.New(rand.NewPCG(seed, 1)).IntN); err != nil || n.ID == "worst" {
			t.Fatalf("Place = %+v, %v", n, err)
		}
	})
}

// TestPlaceBalances distributes many sessions, once by Place and once at random, and
// compares the fullest node with the average.
func TestPlaceBalances(t *testing.T) {
	const nodes, sessions = 100, 5000
	seeded := rand.New(rand.NewPCG(1, 2))
	over := func(choose func([]holdfast.Node) int) int {
		fleet := make([]holdfast.Node, nodes)
		for i := range fleet {
			fleet[i] = holdfast.Node{ID: holdfast.NodeID(fmt.Sprint(i)), PeerAddress: "h", Slots: 16}
		}
		for range sessions {
			countPlaced(&fleet[choose(fleet)])
		}
		most := slices.MaxFunc(fleet, func(a, b holdfast.Node) int { return a.Sessions - b.Sessions })
		return most.Sessions - sessions/nodes
	}
	random := over(func([]holdfast.Node) int { return seeded.IntN(nodes) })
	placed := over(func(fleet []holdfast.Node) int {
		placed, err := Place(fleet, Need{}, seeded.IntN)
		must(t, err)
		return slices.IndexFunc(fleet, func(n holdfast.Node) bool { return n.ID == placed.ID })
	})
	t.Logf("the fullest of %d nodes has %d more than the average of %d by Place, %d by chance", nodes, placed, sessions/nodes, random)
	if placed > 5 || random < 2*placed {
		t.Errorf("the fullest node has %d more than the average, %d by chance", placed, random)
	}
}

// TestPlaceAvoidsTheBusy: half of the fleet is loaded, by each figure alone.
func TestPlaceAvoidsTheBusy(t *testing.T) {
	for name, busy := range map[string]holdfast.Node{
		"cpu": {CPULoad: 0.9}, "pressure": {CPULoad: 0.3, Pressure: 0.5}, "boots": {CPULoad: 0.3, Boots: 40},
	} {
		t.Run(name, func(t *testing.T) {
			seeded := rand.New(rand.NewPCG(3, 4))
			fleet := make([]holdfast.Node, 40)
			for i := range fleet {
				fleet[i] = holdfast.Node{CPULoad: 0.3}
				if i%2 == 0 {
					fleet[i] = busy
				}
				fleet[i].ID, fleet[i].PeerAddress, fleet[i].Slots = holdfast.NodeID(fmt.Sprint(i)), "h", 16
			}
			toBusy := 0
			for range 1000 {
				placed, err := Place(fleet, Need{}, seeded.IntN)
				must(t, err)
				var i int
				_, _ = fmt.Sscan(string(placed.ID), &i)
				if i%2 == 0 {
					toBusy++
				}
			}
			// Only where both of the two drawn are busy: 19/39 · 1/2.
			if toBusy > 300 {
				t.Errorf("%d of 1000 went to a busy node, want about 244", toBusy)
			}
		})
	}
}
