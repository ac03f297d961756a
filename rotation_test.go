package holdfast

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestOutOfRotation(t *testing.T) {
	now := time.Now()
	well := func(id NodeID) Node { return Node{ID: id} }
	sick := func(id NodeID, since int) Node {
		return Node{ID: id, Degraded: "slow", DegradedSince: now.Add(time.Duration(since) * time.Minute)}
	}
	draining := func(id NodeID) Node { return Node{ID: id, Draining: true} }
	for _, c := range []struct {
		name  string
		share float64
		nodes []Node
		want  []NodeID
	}{
		{"no node is degraded", 0.5, []Node{well("a"), well("b")}, nil},
		{"one of three", 1. / 3, []Node{well("a"), sick("b", 0), well("c")}, []NodeID{"b"}},
		{"one of three is more than a quarter", 0.25, []Node{well("a"), sick("b", 0), well("c")}, nil},
		{"a node on its own", 0.5, []Node{sick("a", 0)}, nil},
		{"one of two is more than a third", 0.34, []Node{sick("a", 0), well("b")}, nil},
		{"the longest first", 0.34, []Node{sick("a", 2), sick("b", 1), sick("c", 3)}, []NodeID{"b"}},
		{"all of them, at a third", 0.34, []Node{sick("a", 0), sick("b", 0), sick("c", 0)}, []NodeID{"a"}},
		{"one that drains takes the place", 0.34, []Node{draining("a"), sick("b", 0), well("c")}, nil},
		{"one in trouble, too", 0.5, []Node{{ID: "a", Trouble: "no engine"}, sick("b", 0), well("c"), sick("d", 1)}, []NodeID{"b"}},
		{"no share", 0, []Node{well("a"), sick("b", 0)}, nil},
		{"no number", math.NaN(), []Node{well("a"), sick("b", 0)}, nil},
	} {
		var got []NodeID
		for id := range OutOfRotation(c.nodes, c.share) {
			got = append(got, id)
		}
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// Only degraded nodes are out, in any order of the nodes. Together with the nodes that are
// out for other reasons they stay within the share.
func TestOutOfRotationIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := make([]Node, rapid.IntRange(0, 12).Draw(t, "nodes"))
		away := 0
		for i := range nodes {
			nodes[i] = Node{ID: NodeID(fmt.Sprint("n", i)), Draining: rapid.Bool().Draw(t, "draining"),
				Trouble: rapid.SampledFrom([]string{"", "", "x"}).Draw(t, "trouble"), Degraded: rapid.SampledFrom([]string{"", "slow"}).Draw(t, "degraded"),
				DegradedSince: time.Unix(int64(rapid.IntRange(0, 3).Draw(t, "since")), 0)}
			if nodes[i].Draining || nodes[i].Trouble != "" {
				away++
			}
		}
		share := rapid.Float64Range(-1, 2).Draw(t, "share")
		out := OutOfRotation(nodes, share)
		if float64(len(out)+away) > math.Max(share, 0)*float64(len(nodes))+1e-6 && len(out) > 0 {
			t.Fatalf("%d of %d are out with %d away, share %v", len(out), len(nodes), away, share)
		}
		for _, n := range nodes {
			if out[n.ID] && (n.Degraded == "" || n.Draining || n.Trouble != "") {
				t.Fatalf("%+v is out", n)
			}
		}
		again := rapid.Permutation(nodes).Draw(t, "order")
		if other := OutOfRotation(again, share); fmt.Sprint(other) != fmt.Sprint(out) {
			t.Fatalf("in another order %v, not %v", other, out)
		}
	})
}
