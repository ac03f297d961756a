package fleet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
	"holdfast/internal/platform/tasks"
)

// countingStore counts how often the nodes are listed.
type countingStore struct {
	store.Store
	mu    sync.Mutex
	reads int
	nodes []holdfast.Node
	err   error
}

func (s *countingStore) Nodes(context.Context) ([]holdfast.Node, error) {
	time.Sleep(time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	return s.nodes, s.err
}

func fleetOf(n int) (all []holdfast.Node) {
	for i := range n {
		all = append(all, holdfast.Node{ID: holdfast.NodeID(fmt.Sprint("n", i)), PeerAddress: "h", Slots: 4})
	}
	return all
}

// TestNodeListReadsAreLimited places many sessions concurrently.
func TestNodeListReadsAreLimited(t *testing.T) {
	for _, size := range []int{3, 200, 1000, 2000} {
		t.Run(fmt.Sprint(size, " nodes"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &countingStore{nodes: fleetOf(size)}
				n := newNodes(s, "n0", func(n int) int { return n - 1 })
				const seconds = 20
				ctx, cancel := context.WithTimeout(t.Context(), seconds*time.Second)
				defer cancel()
				var all sync.WaitGroup
				for range 4 {
					all.Go(func() {
						for ctx.Err() == nil {
							if _, err := n.place(ctx, nil, ""); err != nil && ctx.Err() == nil {
								t.Error(err)
							}
							_ = tasks.Sleep(ctx, 100*time.Millisecond)
						}
					})
				}
				all.Wait()
				if perSecond := float64(s.reads*size) / seconds; size > 200 && perSecond > 1.1*nodesPerSec || s.reads > seconds+1 {
					t.Errorf("%d reads of %d nodes in %d s", s.reads, size, seconds)
				}
				if want := seconds / int(maxAge(size)/time.Second); s.reads < want*8/10 {
					t.Errorf("%d reads in %d s, want about %d", s.reads, seconds, want)
				}
			})
		})
	}
}

func TestNodesAreReadOnDemandOnly(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		s := &countingStore{Store: w.store}
		w.nodes[0].nodes.store = s
		time.Sleep(time.Hour)
		if s.reads != 0 {
			t.Errorf("%d reads", s.reads)
		}
	})
}

// TestNewNodeIsFound: a new node is found before the list expires.
func TestNewNodeIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &countingStore{nodes: fleetOf(4000)}
		n := newNodes(s, "n0", func(int) int { return 0 })
		must(t, n.refresh(t.Context()))
		s.nodes = append(fleetOf(4000), holdfast.Node{ID: "new"})
		time.Sleep(time.Second)
		must(t, n.ensure(t.Context(), "new"))
		if _, ok := n.get("new"); !ok {
			t.Error("a new node is not known")
		}
		// Requests for an unknown node do not cause more reads of the list.
		for range 1000 {
			must(t, n.ensure(t.Context(), "unknown"))
			time.Sleep(100 * time.Millisecond)
		}
		if limit := 2 + 2*100/int(maxAge(4000)/time.Second); s.reads > limit {
			t.Errorf("%d reads, at most %d are allowed", s.reads, limit)
		}
	})
}

func TestOldNodesAreBetterThanNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &countingStore{err: holdfast.ErrStore}
		n := newNodes(s, "n0", func(int) int { return 0 })
		if _, err := n.place(t.Context(), nil, ""); !errors.Is(err, holdfast.ErrStore) {
			t.Errorf("without a list: %v, want ErrStore", err)
		}
		s.nodes, s.err = fleetOf(1), nil
		time.Sleep(time.Second)
		if _, err := n.place(t.Context(), nil, ""); err != nil {
			t.Error(err)
		}
		s.err = holdfast.ErrStore
		time.Sleep(time.Minute)
		if _, err := n.place(t.Context(), nil, ""); err != nil {
			t.Errorf("with an old list: %v", err)
		}
	})
}
