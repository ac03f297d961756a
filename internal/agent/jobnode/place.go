package jobnode

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/hosts/job"
	"holdfast/internal/hosts/job/spread"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
	"holdfast/internal/sessions/fleet"
)

const (
	askLimit  = 2 * time.Second // for the answer of a node
	askAtOnce = 32              // requests in progress
	askRounds = 3               // draws, while no drawn node answers

	// pullRecords is how many records an estimate reads, the newest.
	pullRecords = 1000
	// unknownPull is the estimate if this node has pulled no image yet.
	unknownPull = 10 * time.Second
)

// PlaceJob implements api.Jobs. It draws two candidates for each run, asks them which images
// they have, and lets package spread choose. The candidates are those of sessions: nodes that
// drain, are cordoned, full, out of rotation or in trouble are none.
func (n *Node) PlaceJob(ctx context.Context, q api.PlaceJobRequest) ([]holdfast.NodeID, error) {
	all, err := n.Nodes(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the nodes of the fleet: %w", err)
	}
	nodes, err := n.candidates(all, q.Nodes)
	if err != nil {
		return nil, err
	}
	for range askRounds {
		candidates := make([]spread.Candidate, len(nodes))
		for i, node := range nodes {
			candidates[i] = spread.Candidate{Load: fleet.Load(node), Slots: node.Slots}
		}
		pairs := spread.Draw(len(nodes), q.Runs, rand.IntN)
		pulls, failed := n.ask(ctx, nodes, spread.Drawn(pairs), q.JobImages)
		if chosen := spread.Choose(candidates, pairs, pulls, len(q.Images)); chosen != nil {
			places := make([]holdfast.NodeID, len(chosen))
			for i, c := range chosen {
				places[i] = nodes[c].ID
			}
			return places, nil
		}
		err = failed
		silent := spread.Drawn(pairs)
		nodes = slices.Collect(func(yield func(*holdfast.Node) bool) {
			for i, node := range nodes {
				if !slices.Contains(silent, i) && !yield(node) {
					return
				}
			}
		})
		if len(nodes) == 0 || ctx.Err() != nil {
			break
		}
	}
	return nil, err
}

// candidates returns the nodes that may run a part of a job.
func (n *Node) candidates(all []holdfast.Node, only []holdfast.NodeID) ([]*holdfast.Node, error) {
	for _, id := range only {
		if !slices.ContainsFunc(all, func(o holdfast.Node) bool { return o.ID == id }) {
			return nil, holdfast.WithHint(fmt.Errorf("node %.64q: %w", id, holdfast.ErrNotFound), "`holdfast node ls` shows the nodes that are up")
		}
	}
	need := fleet.Need{Self: n.id, OutOfRotation: holdfast.OutOfRotation(all, n.share)}
	nodes := slices.DeleteFunc(need.Candidates(all), func(o *holdfast.Node) bool {
		return n.Client == nil && o.ID != n.id || len(only) > 0 && !slices.Contains(only, o.ID)
	})
	if len(nodes) == 0 {
		what := "node takes a part of the job"
		if len(only) > 0 {
			what = "named " + what
		}
		return nil, holdfast.WithHint(fmt.Errorf("no %s: %w", what, holdfast.ErrBusy),
			"`holdfast node ls` shows the nodes that drain, are cordoned, full, out of rotation or in trouble")
	}
	return nodes, nil
}

// ask asks nodes, by their indices, for their estimates. If no node has one, it returns
// why.
func (n *Node) ask(ctx context.Context, nodes []*holdfast.Node, which []int, q api.JobImages) (map[int]time.Duration, error) {
	var mu sync.Mutex
	var asking sync.WaitGroup
	pulls, slots := map[int]time.Duration{}, make(chan struct{}, askAtOnce)
	var errs []error
	for _, i := range which {
		slots <- struct{}{}
		asking.Go(func() {
			defer func() { <-slots }()
			e, err := n.askOne(ctx, *nodes[i], q)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				errs = append(errs, fmt.Errorf("node %s: %w", nodes[i].ID, err))
			case q.Pull == job.PullNever && len(e.Missing) > 0:
				errs = append(errs, holdfast.WithHint(fmt.Errorf("node %s does not have %s: %w", nodes[i].ID, strings.Join(e.Missing, ", "), holdfast.ErrNotFound),
					"pull it there, or set pull: missing in the job"))
			default:
				pulls[i] = time.Duration(e.Pull)
			}
		})
	}
	asking.Wait()
	if len(pulls) == 0 {
		return nil, cmp.Or(errs...)
	}
	return pulls, nil
}

func (n *Node) askOne(ctx context.Context, node holdfast.Node, q api.JobImages) (api.PullEstimate, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	if node.ID == n.id {
		return n.EstimatePull(ctx, q)
	}
	c, err := n.Client(node)
	if err != nil {
		return api.PullEstimate{}, err
	}
	defer c.Close()
	return c.EstimatePull(ctx, node.ID, q)
}

// EstimatePull implements api.Jobs. The estimate of a missing image is the median time of
// this node's pulls of it, or of all images if it has pulled none. The images of a job are
// pulled at the same time over one link, so the times are added.
func (n *Node) EstimatePull(ctx context.Context, q api.JobImages) (api.PullEstimate, error) {
	if n.Draining() {
		return api.PullEstimate{}, fmt.Errorf("node %s: %w", n.id, holdfast.ErrDraining)
	}
	var e api.PullEstimate
	for _, image := range q.Images {
		if n.engine == nil {
			break
		}
		_, err := n.engine.ImageDigest(ctx, image)
		switch {
		case err == nil && q.Platform == "":
		case err == nil, errors.Is(err, engine.ErrNoImage):
			e.Missing = append(e.Missing, image)
		default:
			return api.PullEstimate{}, err
		}
	}
	if len(e.Missing) == 0 || q.Pull == job.PullAlways {
		return e, nil
	}
	records, err := n.Spinups.List(spinup.Filter{Outcome: spinup.OK, Limit: pullRecords})
	if err != nil {
		return e, err
	}
	e.Pull = holdfast.Millis(estimate(records, e.Missing))
	return e, nil
}

// estimate returns the estimated time to pull images, from past spin-ups.
func estimate(records []spinup.Record, images []string) (sum time.Duration) {
	of := map[string][]time.Duration{}
	var all []time.Duration
	for _, r := range records {
		if r.Pull == nil || r.Pull.Cached || r.Pull.Joined {
			continue
		}
		took := time.Duration(r.Times[spinup.Download] + r.Times[spinup.Extract])
		of[r.Image], all = append(of[r.Image], took), append(all, took)
	}
	for _, image := range images {
		sum += median(of[image], all, []time.Duration{unknownPull})
	}
	return sum
}

// median returns the median of the first list that has an element.
func median(lists ...[]time.Duration) time.Duration {
	for _, l := range lists {
		if len(l) > 0 {
			l = slices.Sorted(slices.Values(l))
			return l[len(l)/2]
		}
	}
	return 0
}
