package fleet

import (
	"fmt"
	"math"

	"holdfast"
)

// Need describes the node that is needed.
type Need struct {
	// Self is the node that asks. It places sessions on itself without a peer address,
	// so it is a candidate without one. "" means none.
	Self  holdfast.NodeID
	Avoid map[holdfast.NodeID]bool // refused the session a moment ago
	// OutOfRotation are the nodes that are out of rotation (holdfast.OutOfRotation).
	// They are candidates only if there are no others.
	OutOfRotation map[holdfast.NodeID]bool
}

// Place chooses the node for a session: the less loaded of two candidates drawn at
// random. This is "the power of two choices" (Mitzenmacher 2001): the fullest of n
// bins is log log n above the average, with one choice it is log n. If all nodes chose
// the least loaded node from the same figures at the same time, they would all choose
// the same one. intN returns a number from 0 up to its argument, exclusive. The result
// points into nodes.
//
// A candidate is healthy, reachable, in rotation, not draining, not full and not
// avoided. If there is no candidate, nodes that are out of rotation are candidates,
// too. If there is still none, the error is holdfast.ErrDraining if all nodes drain,
// else holdfast.ErrBusy. Place is a pure function. Between equal loads the number of
// sessions decides, then the draw.
func Place(nodes []holdfast.Node, need Need, intN func(int) int) (*holdfast.Node, error) {
	candidates := need.candidates(nodes)
	if len(candidates) == 0 && len(need.OutOfRotation) > 0 {
		need.OutOfRotation = nil
		candidates = need.candidates(nodes)
	}
	switch len(candidates) {
	case 0:
		return nil, noCandidate(nodes)
	case 1:
		return candidates[0], nil
	}
	i, j := intN(len(candidates)), intN(len(candidates)-1)
	if j >= i {
		j++
	}
	a, b := candidates[i], candidates[j]
	if less(b, a) {
		return b, nil
	}
	return a, nil
}

// Candidates returns the nodes that are candidates of Place, in their order. Those that are
// out of rotation are not among them.
func (need Need) Candidates(nodes []holdfast.Node) []*holdfast.Node { return need.candidates(nodes) }

// candidates returns the nodes that fit, in their order.
func (need Need) candidates(nodes []holdfast.Node) (all []*holdfast.Node) {
	for i := range nodes {
		if need.fits(&nodes[i]) {
			all = append(all, &nodes[i])
		}
	}
	return all
}

// fits reports whether the node is a candidate.
func (need Need) fits(n *holdfast.Node) bool {
	return n.Trouble == "" && !n.Draining && !full(n) && !need.Avoid[n.ID] && !need.OutOfRotation[n.ID] && (n.PeerAddress != "" || n.ID == need.Self)
}

func full(n *holdfast.Node) bool { return n.Max > 0 && n.Sessions >= n.Max }

// noCandidate returns why there is no candidate.
func noCandidate(nodes []holdfast.Node) error {
	var drain, crowded, rest int
	for i := range nodes {
		switch n := &nodes[i]; {
		case n.Draining:
			drain++
		case full(n):
			crowded++
		default:
			rest++
		}
	}
	if drain > 0 && crowded+rest == 0 {
		return fmt.Errorf("all %d nodes: %w", drain, holdfast.ErrDraining)
	}
	return holdfast.WithHint(fmt.Errorf("no node accepts a session (%d full, %d draining, %d in trouble, unreachable or unwilling): %w",
		crowded, drain, rest, holdfast.ErrBusy), "holdfast node ls shows why; add a node, or raise sessions.max")
}

func less(a, b *holdfast.Node) bool {
	if x, y := load(a), load(b); x != y {
		return x < y
	}
	return a.Sessions < b.Sessions
}

// Load estimates how busy a node is: from 0 for an idle node, 1 for busy CPUs or for slots
// that are all taken, and more for both.
func Load(n *holdfast.Node) float64 { return load(n) }

// load estimates how long a new session would wait for a CPU on a node. It is the sum
// of the CPUs' busy share (0 to 1), the share of time in which a task waited for a CPU
// (PSI, 0 to 1), and the boots in progress divided by the boots that the node does at
// once.
//
// The source placed sessions by the busy share. That saturates: of two nodes that are
// busy all the time, the pressure shows the worse one. Both figures are a second old
// or more. Within that time a node may have received a hundred sessions that do not
// use CPU yet; these count as boots. Boots weigh as much as a fully busy host if all
// slots are taken, because a new session then waits for a boot to end. They grow
// without bound with the queue.
func load(n *holdfast.Node) float64 {
	return share(n.CPULoad) + share(n.Pressure) + float64(max(n.Boots, 0))/float64(max(n.Slots, 1))
}

// Weight is the share of new connections that a node's gateway should get from a load
// balancer, from 25 to 100 for nodes whose boots do not queue, never below 1. It is
// 100/(1+load). The slope is gentle because the figure is seconds old: a balancer that
// empties the busiest node would overload the others in turn.
func Weight(n *holdfast.Node) int { return max(int(math.Round(100/(1+load(n)))), 1) }

// share limits a figure to its range. NaN counts as the worst value.
func share(x float64) float64 {
	if x >= 0 && x <= 1 {
		return x
	}
	if x < 0 {
		return 0
	}
	return 1
}

// countPlaced counts one more session that is about to boot on the node.
func countPlaced(n *holdfast.Node) {
	n.Sessions++
	n.Boots++
}
