package holdfast

import (
	"cmp"
	"math"
	"slices"
)

// OutOfRotation returns the degraded nodes that get no new session. The nodes that
// have been degraded for longest come first. Together with the nodes that drain or are
// in trouble they are never more than share (0 to 1) of all nodes. Further degraded
// nodes stay in rotation, because a slow node is better than none. OutOfRotation is a
// pure function and does not depend on the order of the nodes. It returns nil if no
// node is out.
func OutOfRotation(nodes []Node, share float64) map[NodeID]bool {
	var sick []*Node
	room := 0
	if share > 0 { // false for NaN, too
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
