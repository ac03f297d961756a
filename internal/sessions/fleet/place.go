package fleet

import (
	"fmt"

	"holdfast"
)

// Need is what a place is looked for.
type Need struct {
	// Self is the node that asks. It takes its own sessions, so it is a
	// candidate without an address for others. "" is none.
	Self  holdfast.NodeID
	Avoid map[holdfast.NodeID]bool // these would not have it a moment ago
	// OutOfRotation are out of rotation (holdfast.OutOfRotation): they get what nobody
	// else takes.
	OutOfRotation map[holdfast.NodeID]bool
}

// Place chooses the node for a session: the less loaded of two candidates drawn
// at random ("the power of two choices", Mitzenmacher 2001: the fullest of n
// bins is log log n above the average, with one choice it is log n; and unlike
// the best of all, many who choose at once by the same figures do not all choose
// the same). intN returns a number from 0 up to its argument, exclusive.
//
// A candidate is healthy, not draining, not full, not avoided, not resting, and can
// be reached. Where all others are out, those that rest are candidates, too. Without
// any, the error is holdfast.ErrDraining where all nodes drain,
// else holdfast.ErrBusy. It is pure; equal loads are decided by the number of
// sessions and then by the draw.
func Place(nodes []holdfast.Node, need Need, intN func(int) int) (holdfast.NodeID, error) {
	n := need.count(nodes)
	if n == 0 && len(need.OutOfRotation) > 0 {
		need.OutOfRotation = nil
		n = need.count(nodes)
	}
	switch n {
	case 0:
		return "", need.noCandidate(nodes)
	case 1:
		return need.nth(nodes, 0).ID, nil
	}
	i, j := intN(n), intN(n-1)
	if j >= i {
		j++
	}
	a, b := need.nth(nodes, i), need.nth(nodes, j)
	if less(b, a) {
		a = b
	}
	return a.ID, nil
}

// count is how many candidates there are.
func (need Need) count(nodes []holdfast.Node) (n int) {
	for i := range nodes {
		if need.fits(&nodes[i]) {
			n++
		}
	}
	return n
}

// fits reports whether the node is a candidate.
func (need Need) fits(n *holdfast.Node) bool {
	return n.Trouble == "" && !n.Draining && !full(n) && !need.Avoid[n.ID] && !need.OutOfRotation[n.ID] && (n.PeerAddress != "" || n.ID == need.Self)
}

func full(n *holdfast.Node) bool { return n.Max > 0 && n.Sessions >= n.Max }

// nth is the i-th candidate.
func (need Need) nth(nodes []holdfast.Node, i int) *holdfast.Node {
	for k := range nodes {
		if !need.fits(&nodes[k]) {
			continue
		}
		if i == 0 {
			return &nodes[k]
		}
		i--
	}
	return nil
}

// noCandidate is why there is no candidate.
func (need Need) noCandidate(nodes []holdfast.Node) error {
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
	return holdfast.WithHint(fmt.Errorf("no node takes a session (%d full, %d draining, %d in trouble, unreachable or unwilling): %w",
		crowded, drain, rest, holdfast.ErrBusy), "holdfast node ls shows why; add a node, or raise sessions.max")
}

func less(a, b *holdfast.Node) bool {
	if x, y := load(a), load(b); x != y {
		return x < y
	}
	return a.Sessions < b.Sessions
}

// load is how long a new session would wait for a CPU on a node, as far as its
// figures tell: the CPUs' busy share (0 to 1), plus the share of time in which
// something waited for one (PSI, 0 to 1), plus the boots under way over the
// boots it does at once.
//
// The busy share is what the source placed by. It saturates: of two nodes that
// are busy all the time the pressure says which one is worse. Both are a second
// old or more, in which a node may have been given a hundred sessions that do
// not burn CPU yet: these are the boots. They weigh a whole busy host where all
// slots are taken, because a session that comes then waits for a boot to end,
// and grow without bound with the queue.
func load(n *holdfast.Node) float64 {
	return share(n.CPULoad) + share(n.Pressure) + float64(max(n.Boots, 0))/float64(max(n.Slots, 1))
}

// share holds a figure to its range; no number at all counts as the worst.
func share(x float64) float64 {
	if x >= 0 && x <= 1 {
		return x
	}
	if x < 0 {
		return 0
	}
	return 1
}

// countPlaced counts one more session that is about to boot there.
func countPlaced(n *holdfast.Node) {
	n.Sessions++
	n.Boots++
}
