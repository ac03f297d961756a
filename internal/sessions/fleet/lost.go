package fleet

import (
	"context"
	"errors"
	"hash/fnv"

	"holdfast"
)

// Watching for sessions whose records went with the lease of their node.
const (
	maxVanished = 1 << 14 // records that wait to be looked at; more of them are left out
	lostSeers   = 2       // nodes of a fleet that look, so that one of them may be lost, too
)

// vanished is told about each record of another node that was deleted although its session
// had not begun to leave. It does not block.
func (f *Fleet) vanished(o holdfast.Owner) {
	select {
	case f.lost <- o:
	default: // a node with that many sessions is lost with others
	}
}

// reportLost calls OnNodeLost for the sessions whose node has no record either: both go
// with the lease. A node that releases a session while it lives still has its record. It
// ends with ctx.
func (f *Fleet) reportLost(ctx context.Context) {
	for {
		var some []holdfast.Owner
		select {
		case o := <-f.lost:
			some = append(some, o)
		case <-ctx.Done():
			return
		}
		for more := true; more; {
			select {
			case o := <-f.lost:
				some = append(some, o)
			default:
				more = false
			}
		}
		gone := map[holdfast.NodeID]bool{}
		for _, o := range some {
			if !f.sees(o) {
				continue
			}
			if _, known := gone[o.Node]; !known {
				gone[o.Node] = f.isGone(ctx, o.Node)
			}
			if gone[o.Node] {
				f.deps.OnNodeLost(o)
			}
		}
	}
}

// isGone reports whether a node has no record. Without an answer it has one.
func (f *Fleet) isGone(ctx context.Context, id holdfast.NodeID) bool {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	_, err := f.deps.Store.Node(ctx, id)
	return errors.Is(err, holdfast.ErrNotFound)
}

// sees reports whether this node is one of those that look after a session's record, by
// the list of nodes as it was read last (rendezvous hashing). A node without a list looks
// after all.
func (f *Fleet) sees(o holdfast.Owner) bool {
	f.nodes.mu.RLock()
	defer f.nodes.mu.RUnlock()
	own, before := weight(f.cfg.Node, o), 0
	for _, n := range f.nodes.list {
		if n.ID != o.Node && n.ID != f.cfg.Node && weight(n.ID, o) > own {
			before++
		}
	}
	return before < lostSeers
}

func weight(n holdfast.NodeID, o holdfast.Owner) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(string(n) + "\x00" + string(o.Key))) // never fails
	return h.Sum64()
}
