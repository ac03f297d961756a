package relay

import "sync"

// leaveWatch tells pairs that their session leaves. It uses one goroutine per
// session that has pairs, not one per pair.
type leaveWatch struct {
	ends *sync.WaitGroup // counts the goroutines

	mu     sync.Mutex
	groups map[<-chan struct{}]*leaveGroup
}

type leaveGroup struct {
	pairs map[pair]struct{}
	empty chan struct{} // closed when the last pair has gone
}

func (w *leaveWatch) add(left <-chan struct{}, p pair) {
	if left == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.groups[left]
	if g == nil {
		g = &leaveGroup{pairs: map[pair]struct{}{}, empty: make(chan struct{})}
		if w.groups == nil {
			w.groups = map[<-chan struct{}]*leaveGroup{}
		}
		w.groups[left] = g
		w.ends.Add(1)
		go w.watch(left, g)
	}
	g.pairs[p] = struct{}{}
}

func (w *leaveWatch) remove(left <-chan struct{}, p pair) {
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.groups[left]
	if g == nil {
		return
	}
	delete(g.pairs, p)
	if len(g.pairs) == 0 {
		delete(w.groups, left)
		close(g.empty)
	}
}

func (w *leaveWatch) watch(left <-chan struct{}, g *leaveGroup) {
	defer w.ends.Done()
	select {
	case <-g.empty:
		return
	case <-left:
	}
	w.mu.Lock()
	if w.groups[left] == g {
		delete(w.groups, left)
	}
	pairs := g.pairs
	g.pairs = nil
	w.mu.Unlock()
	for p := range pairs {
		p.leave()
	}
}
