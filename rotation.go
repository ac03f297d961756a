package holdfast

import (
	"cmp"
	"math"
	"slices"
)

// OutOfRotation are the degraded nodes that get no new session: those that are
// degraded for longest, and never so many that they, with the nodes that drain or
// are in trouble, are more than the share (0 to 1) of all. Where more are degraded,
// the rest go on: a slow node is better than none. It is pure and does not depend on
// the order of the nodes; nil where nobody is out.
func OutOfRotation(nodes []Node, share float64) map[NodeID]bool {
	var sick []*Node
	room := 0
	if share > 0 { // also: is a number
		room = int(math.Floor(min(share, 1)*float64(len(nodes)) + 1e-9)) // 1/3 of 3 is 1
	}
	for i := range nodes {
		switch n := &nodes[i]; {
		case n.Draining || n.Trouble != "":
			room--
		case n.Degraded != "":
			sick = append(sick, n)
		}
	}
	if len(sick) == 0 || room <= 0 {
		return nil
	}
	slices.SortFunc(sick, func(a, b *Node) int {
		return cmp.Or(a.DegradedSince.Compare(b.DegradedSince), cmp.Compare(a.ID, b.ID))
	})
	out := make(map[NodeID]bool)
	for _, n := range sick[:min(room, len(sick))] {
		out[n.ID] = true
	}
	return out
}
