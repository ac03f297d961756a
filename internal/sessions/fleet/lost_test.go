package fleet

import (
	"testing"
	"testing/synctest"
	"time"

	"holdfast"
)

// Other nodes see that a session is lost with its node, and not that a living node has
// released one. One node that sees it is enough, and not all do.
func TestLostWithItsNode(t *testing.T) {
	bubble(t, 6, func(t *testing.T, w *world) {
		for _, x := range w.nodes {
			must(t, x.nodes.refresh(t.Context()))
		}
		owns := w.nodes[0]
		claimed := func(key holdfast.SessionKey) holdfast.Owner {
			o, err := w.store.Claim(t.Context(), holdfast.Owner{Key: key, Node: owns.id, State: holdfast.Claimed}, owns.lease)
			must(t, err)
			o.State = holdfast.Ready
			o, err = w.store.Advance(t.Context(), o)
			must(t, err)
			synctest.Wait()
			return o
		}
		seen := func() (n int) {
			for _, x := range w.nodes {
				n += int(x.lost.Load())
			}
			return n
		}
		_, err := w.store.Release(t.Context(), claimed("released"))
		must(t, err)
		synctest.Wait()
		if n := seen(); n != 0 {
			t.Errorf("%d nodes take a released session for a lost one", n)
		}
		claimed("lost")
		owns.die()
		time.Sleep(2 * ttl)
		synctest.Wait()
		if n := seen(); n != lostSeers {
			t.Errorf("%d nodes have seen the loss, want %d", n, lostSeers)
		}
	})
}
