// Package fleetstats answers a question about spin-ups for a whole fleet: it asks all nodes
// at once, and merges their answers. Nothing is collected in advance and no server is needed.
package fleetstats

import (
	"context"
	"fmt"
	"sort"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"holdfast"
	"holdfast/internal/hosts/spinup"
)

const (
	// NodeLimit is the time limit for the answer of one node. A node reads 10,000 records in
	// about 0.2 s.
	NodeLimit = 5 * time.Second
	atOnce    = 128 // requests in progress
)

// Fleet asks the nodes of a fleet. Any goroutine may call its methods.
type Fleet struct {
	Self holdfast.NodeID
	// Own answers for this node.
	Own func(spinup.Question) (spinup.Sketch, error)
	// Nodes lists the nodes that are up, this one among them.
	Nodes func(context.Context) ([]holdfast.Node, error)
	// Ask asks another node. It returns when ctx is done.
	Ask func(context.Context, holdfast.Node, spinup.Question) (spinup.Sketch, error)
}

// Report answers a question for all nodes. Nodes that do not answer within NodeLimit, or
// until ctx is done, are listed in the report. It returns an error if the nodes cannot be
// listed, for a wrong question, and holdfast.ErrNotFound if no group is called q.Against.
func (f Fleet) Report(ctx context.Context, q spinup.Question) (spinup.FleetReport, error) {
	if err := q.Check(); err != nil {
		return spinup.FleetReport{}, err
	}
	nodes, err := f.Nodes(ctx)
	if err != nil {
		return spinup.FleetReport{}, fmt.Errorf("list the nodes of the fleet: %w", err)
	}
	sort.Slice(nodes, func(i, j int) bool { return nodes[i].ID < nodes[j].ID })
	answers := make([]spinup.NodeSketch, len(nodes))
	slots := semaphore.NewWeighted(atOnce)
	var asked sync.WaitGroup
	for i, n := range nodes {
		answers[i].Node = n.ID
		if answers[i].Err = slots.Acquire(ctx, 1); answers[i].Err != nil {
			continue
		}
		asked.Go(func() {
			defer slots.Release(1)
			answers[i].Sketch, answers[i].Err = f.ask(ctx, n, q)
		})
	}
	asked.Wait()
	return spinup.FleetReportOf(answers, q)
}

func (f Fleet) ask(ctx context.Context, n holdfast.Node, q spinup.Question) (spinup.Sketch, error) {
	if n.ID == f.Self {
		return f.Own(q)
	}
	ctx, cancel := context.WithTimeout(ctx, NodeLimit)
	defer cancel()
	return f.Ask(ctx, n, q)
}
