package fleet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/platform/tasks"
)

// TestChaos lets nodes die, drain, lose the network and return, and lets the store fail
// and lose its history, while clients of all nodes request sessions. Each request must
// succeed within the time for which a gateway would park it.
func TestChaos(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			bubble(t, 5, func(t *testing.T, w *world) { chaos(t, w, rand.New(rand.NewPCG(seed, 7))) })
		})
	}
}

func chaos(t *testing.T, w *world, random *rand.Rand) {
	const sessions, clients = 10, 20
	for _, x := range w.nodes {
		x.host.with(func() { x.host.boot = 300 * time.Millisecond })
	}
	ctx, stop := context.WithCancel(t.Context())
	var storm sync.WaitGroup
	gateways := w.nodes[:2] // these nodes stay, because the requests of a dead gateway end with it
	for i := range clients {
		x, rest := gateways[i%2], rand.New(rand.NewPCG(uint64(i), 8))
		storm.Go(func() {
			for ctx.Err() == nil {
				k := holdfast.SessionKey(fmt.Sprint("k", rest.IntN(sessions)))
				parked, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				if err := x.reach(parked, k); err != nil {
					t.Errorf("%v on node %s: session %s: %v", time.Now().Format("04:05"), x.id, k, err)
				}
				cancel()
				_ = tasks.Sleep(ctx, time.Duration(rest.IntN(1000))*time.Millisecond)
			}
		})
	}
	mortal := append([]*node(nil), w.nodes[2:]...)
	for range 20 {
		i := random.IntN(len(mortal))
		mortal[i] = w.hurt(t, mortal[i], random.IntN(6))
		time.Sleep(time.Duration(random.IntN(4000)) * time.Millisecond)
	}
	stop()
	storm.Wait()
}

// hurt causes one fault and repairs it. It returns the node, or its replacement.
func (w *world) hurt(t *testing.T, x *node, how int) *node {
	switch how {
	case 0:
		x.die()
		x = w.add()
		x.host.with(func() { x.host.boot = 300 * time.Millisecond })
	case 1:
		x.handOver(t, true)
	case 2:
		x.handOver(t, false)
	case 3:
		w.net.cut(x.record.PeerAddress, true)
		time.Sleep(3 * time.Second)
		w.net.cut(x.record.PeerAddress, false)
	case 4:
		w.store.SetDown(true)
		time.Sleep(3 * time.Second)
		w.store.SetDown(false)
	case 5:
		w.store.Forget()
	}
	return x
}

// handOver drains the node, with or without successors, and restarts it a second
// later.
func (x *node) handOver(t *testing.T, told bool) {
	x.host.with(func() { x.host.draining = true })
	x.publish(func(n *holdfast.Node) { n.Draining = true })
	moves := x.moves()
	if told {
		x.Prepare(t.Context(), moves)
	}
	for _, m := range moves {
		must(t, x.host.leave(t.Context(), m.Key))
		time.Sleep(10 * time.Millisecond)
		must(t, x.host.finish(t.Context(), m.Key))
	}
	time.Sleep(time.Second)
	x.host.with(func() { x.host.draining = false })
	x.publish(func(n *holdfast.Node) { n.Draining = false })
}

// moves returns the sessions that are ready on the node.
func (x *node) moves() (all []Departing) {
	x.host.with(func() {
		for _, e := range x.host.sessions {
			select {
			case <-e.settled:
				all = append(all, DepartingOf(e.owner, false))
			default:
			}
		}
	})
	return all
}
