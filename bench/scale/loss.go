package scale

import (
	"context"
	"fmt"
	"sync"
	"time"

	"holdfast"
)

// readyAgain is the row of the time from the loss until a client has its session again.
const readyAgain = "ready again"

const (
	// deadDial is the time in which a node's gateway notices that a peer's machine is
	// gone, as in internal/agent.
	deadDial = 2 * time.Second
)

// lose makes nodes vanish. From that moment a client for each lost session asks one of the
// remaining nodes. lose returns when all clients have their session.
func (s *simulation) lose(ctx context.Context) error {
	gone, lost := s.victims()
	waiting, cancel := context.WithTimeout(ctx, s.o.Patience)
	defer cancel()
	s.meter.begin(partLoss)
	first := s.meter.lose()
	var ending sync.WaitGroup
	defer ending.Wait()
	for _, n := range s.nodes {
		if gone[n.id] {
			ending.Go(n.vanish)
		}
	}
	var clients sync.WaitGroup
	for i, key := range lost {
		clients.Go(func() { s.client(waiting, s.alive[i%s.o.Directories], key, gone) })
	}
	// Nothing happens until the leases have expired, so the costs are counted from
	// then on.
	select {
	case <-first:
	case <-waiting.Done():
	}
	err := s.reading(ctx)
	clients.Wait()
	if err != nil {
		return err
	}
	s.took = s.meter.sinceLoss()
	s.meter.begin("")
	if err := s.reading(ctx); err != nil {
		return err
	}
	return s.verify(ctx, lost, gone)
}

// victims chooses the nodes that vanish, among those without a directory, and returns
// their sessions.
func (s *simulation) victims() (gone map[holdfast.NodeID]bool, lost []holdfast.SessionKey) {
	gone = map[holdfast.NodeID]bool{}
	blind := s.nodes[s.o.Directories:]
	for _, i := range s.random.Perm(len(blind))[:s.o.lostNodes()] {
		gone[blind[i].id] = true
	}
	for i := range s.o.Sessions {
		if gone[s.nodes[i%len(s.nodes)].id] {
			lost = append(lost, keyOf(i))
		}
	}
	s.alive = nil
	for _, n := range s.nodes {
		if !gone[n.id] {
			s.alive = append(s.alive, n)
		}
	}
	s.lost = len(lost)
	return gone, lost
}

// client asks a node for a session as its gateway does. If the route leads to a machine
// that is gone, it asks for the next route.
func (s *simulation) client(ctx context.Context, n *simNode, key holdfast.SessionKey, gone map[holdfast.NodeID]bool) {
	for ctx.Err() == nil {
		r, release, err := n.fleet.Acquire(ctx, key, nil)
		switch {
		case err != nil:
			s.meter.refused(err)
			sleepOr(ctx.Done(), time.Second) // Retry-After
		case gone[r.Node]:
			sleepOr(r.Left, deadDial)
			n.fleet.Refused(key, r)
		default:
			release()
			s.meter.add(readyAgain, s.meter.sinceLoss())
			return
		}
	}
}

func sleepOr(done <-chan struct{}, d time.Duration) {
	select {
	case <-done:
	case <-time.After(d):
	}
}

// verify reads the owners of the lost sessions from the store.
func (s *simulation) verify(ctx context.Context, lost []holdfast.SessionKey, gone map[holdfast.NodeID]bool) error {
	owners, _, err := s.alive[0].store.List(ctx)
	for try := 0; err != nil && try < 10 && ctx.Err() == nil; try++ {
		owners, _, err = s.alive[0].store.List(ctx) // after the measurement
	}
	if err != nil {
		return fmt.Errorf("read the owners of the lost sessions: %w", err)
	}
	served := map[holdfast.SessionKey]bool{}
	for _, o := range owners {
		served[o.Key] = o.State == holdfast.Ready && !gone[o.Node]
	}
	for _, key := range lost {
		if !served[key] {
			s.failed.Add(1)
		}
	}
	return nil
}
