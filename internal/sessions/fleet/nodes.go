package fleet

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
)

const (
	nodesTimeout = 2 * time.Second
	nodesPerSec  = 200 // node records that one node reads per second at most
)

// maxAge is how old the list of n nodes may become before it is read again. It is one
// second, which is how often nodes write their records, or n/200 seconds if that is
// more. A list of n nodes is n records, so a node that places sessions all the time
// reads at most 200 records a second. (With one second for every size, a thousand
// nodes would read a million records a second from the store.)
func maxAge(n int) time.Duration {
	return max(time.Second, time.Duration(n)*time.Second/nodesPerSec)
}

// nodes is the list of nodes. It is read again only on demand. Any goroutine may call
// its methods.
type nodes struct {
	store store.Store
	self  holdfast.NodeID
	rand  func(int) int
	share float64       // share of all nodes that may be out of rotation
	turn  chan struct{} // held by the goroutine that reads the list

	mu    sync.RWMutex
	list  []holdfast.Node
	index map[holdfast.NodeID]int
	tried time.Time // time of the last read, also of a failed one
	err   error     // error of that read
	early bool      // it was before the list was due
	stale bool      // the last read failed: the list is an older one
}

func newNodes(s store.Store, self holdfast.NodeID, rand func(int) int) *nodes {
	return &nodes{store: s, self: self, rand: rand, turn: make(chan struct{}, 1)}
}

// refresh ensures that the list is not older than maxAge. If the store does not
// answer, an older list is used; the claim decides in the end.
func (n *nodes) refresh(ctx context.Context) error { return n.read(ctx, n.isFresh) }

// ensure makes the list contain a node, if that node exists. For a node that is not in
// the list, the list may be read before it is due: after a second, and not twice in a
// row. So at most twice as much is read as maxAge allows.
func (n *nodes) ensure(ctx context.Context, id holdfast.NodeID) error {
	return n.read(ctx, func() (bool, error) {
		if young, err := n.isFresh(); !young {
			return false, err
		}
		n.mu.RLock()
		defer n.mu.RUnlock()
		_, known := n.index[id]
		return known || n.early || time.Since(n.tried) < time.Second, n.err
	})
}

// read reads the list unless accepts accepts it. One goroutine reads, the others wait
// for it.
func (n *nodes) read(ctx context.Context, accepts func() (bool, error)) error {
	if ok, err := accepts(); ok {
		return err
	}
	select {
	case n.turn <- struct{}{}:
		defer func() { <-n.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if ok, err := accepts(); ok {
		return err
	}
	reading, cancel := context.WithTimeout(ctx, nodesTimeout)
	defer cancel()
	list, err := n.store.Nodes(reading)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	early, _ := n.isFresh()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tried, n.err, n.early = time.Now(), nil, early
	if n.stale = err != nil; !n.stale {
		n.set(list)
	} else if n.list == nil {
		n.err = fmt.Errorf("listing the fleet's nodes: %w", err)
	}
	return n.err
}

func (n *nodes) set(list []holdfast.Node) {
	n.list = list
	n.index = make(map[holdfast.NodeID]int, len(list))
	for i, node := range list {
		n.index[node.ID] = i
	}
}

func (n *nodes) isFresh() (bool, error) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return !n.tried.IsZero() && time.Since(n.tried) < maxAge(len(n.list)), n.err
}

// all returns a copy of the list.
func (n *nodes) all(ctx context.Context) ([]holdfast.Node, error) {
	if err := n.refresh(ctx); err != nil {
		return nil, err
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	return slices.Clone(n.list), nil
}

// alone reports whether this node is the only one in the list, and whether the list is
// out of date because the last read failed.
func (n *nodes) alone() (alone, stale bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return len(n.list) == 1 && n.list[0].ID == n.self, n.stale
}

// place chooses a node. It takes the preferred node if that is a candidate. It counts
// the session for that node until the list is read again; otherwise all sessions
// placed within a second would be placed by the same figures.
func (n *nodes) place(ctx context.Context, avoid map[holdfast.NodeID]bool, prefer holdfast.NodeID) (holdfast.Node, error) {
	if err := n.refresh(ctx); err != nil {
		return holdfast.Node{}, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	need := Need{Self: n.self, Avoid: avoid, OutOfRotation: holdfast.OutOfRotation(n.list, n.share)}
	if i, ok := n.index[prefer]; ok && need.fits(&n.list[i]) {
		countPlaced(&n.list[i])
		return n.list[i], nil
	}
	node, err := Place(n.list, need, n.rand)
	if err != nil {
		return holdfast.Node{}, err
	}
	countPlaced(node)
	return *node, nil
}

// get returns what is known about a node, without a request.
func (n *nodes) get(id holdfast.NodeID) (holdfast.Node, bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	i, ok := n.index[id]
	if !ok {
		return holdfast.Node{}, false
	}
	return n.list[i], true
}

// mark changes what is known about a node until the list is read again.
func (n *nodes) mark(id holdfast.NodeID, change func(*holdfast.Node)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if i, ok := n.index[id]; ok {
		change(&n.list[i])
	}
}
