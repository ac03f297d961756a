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

// maxAge is how old the list of n nodes may get before it is read again: one
// second, which is how often nodes write their records, and n/200 seconds where
// that is more. A list of n nodes is n records, so that a node which places
// something all the time reads at most 200 records a second. (Were it a second
// for every size, a thousand nodes would read a million records a second from
// the store.)
func maxAge(n int) time.Duration {
	return max(time.Second, time.Duration(n)*time.Second/nodesPerSec)
}

// nodes is the list of nodes, read again only when somebody asks for it. Any
// goroutine may call its methods.
type nodes struct {
	store store.Store
	self  holdfast.NodeID
	rand  func(int) int
	share float64       // of all nodes, that may be out of rotation
	turn  chan struct{} // whoever reads the list holds it

	mu    sync.RWMutex
	list  []holdfast.Node
	index map[holdfast.NodeID]int
	tried time.Time // the last reading, also one that failed
	err   error     // of it
	early bool      // it came before its time
	stale bool      // the last reading failed: the list is an older one
}

func newNodes(s store.Store, self holdfast.NodeID, rand func(int) int) *nodes {
	return &nodes{store: s, self: self, rand: rand, turn: make(chan struct{}, 1)}
}

// refresh makes sure that the list is not older than maxAge. Where the store does
// not answer, an old list does; the claim decides in the end.
func (n *nodes) refresh(ctx context.Context) error { return n.read(ctx, n.isFresh) }

// ensure makes sure that the list has a node, if there is such a node. For one
// that has come since, the list may be read before its time: after a second, and
// not twice in a row, so that at most twice as much is read as maxAge says.
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

// read reads the list unless it will do. One reads, the others wait for it.
func (n *nodes) read(ctx context.Context, willDo func() (bool, error)) error {
	if ok, err := willDo(); ok {
		return err
	}
	select {
	case n.turn <- struct{}{}:
		defer func() { <-n.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if ok, err := willDo(); ok {
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

// alone reports whether the list has no other node than this one, and whether it
// is an old one because the last reading failed.
func (n *nodes) alone() (alone, stale bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return len(n.list) == 1 && n.list[0].ID == n.self, n.stale
}

// place chooses a node, first of all the preferred one where that is a candidate,
// and counts what it gave it until the list is read again: else all that is placed
// within a second would go by the same figures.
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
	id, err := Place(n.list, need, n.rand)
	if err != nil {
		return holdfast.Node{}, err
	}
	node := &n.list[n.index[id]]
	countPlaced(node)
	return *node, nil
}

// get returns what is known of a node, without asking anybody.
func (n *nodes) get(id holdfast.NodeID) (holdfast.Node, bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	i, ok := n.index[id]
	if !ok {
		return holdfast.Node{}, false
	}
	return n.list[i], true
}

// mark changes what is known of a node until the list is read again.
func (n *nodes) mark(id holdfast.NodeID, change func(*holdfast.Node)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if i, ok := n.index[id]; ok {
		change(&n.list[i])
	}
}
