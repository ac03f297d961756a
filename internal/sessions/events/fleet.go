package events

import (
	"cmp"
	"context"
	"fmt"
	"sort"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast"
)

const (
	nodeLimit = 3 * time.Second // for the answer of one node
	atOnce    = 64              // requests in progress
)

// Fleet asks the nodes of a fleet for their endings. Any goroutine may call its methods.
type Fleet struct {
	Self holdfast.NodeID
	Own  *Endings
	// Nodes lists the nodes that are up, this one among them.
	Nodes func(context.Context) ([]holdfast.Node, error)
	// Ask asks another node. It returns when ctx is done.
	Ask func(ctx context.Context, n holdfast.Node, key holdfast.SessionKey, limit int) ([]holdfast.Ending, error)
}

// Report returns the endings of a key, or of all keys for "", that any node knows: the
// newest first, at most limit (0: all). Nodes that do not answer in 3 s are listed in it.
// It returns an error if the nodes cannot be listed.
func (f Fleet) Report(ctx context.Context, key holdfast.SessionKey, limit int) (holdfast.EndingReport, error) {
	nodes, err := f.Nodes(ctx)
	if err != nil {
		return holdfast.EndingReport{}, fmt.Errorf("listing the nodes of the fleet: %w", err)
	}
	all := f.Own.List(key, limit)
	var (
		mu      sync.Mutex
		missing []holdfast.MissingNode
		asking  errgroup.Group
	)
	asking.SetLimit(atOnce)
	for _, n := range nodes {
		if n.ID == f.Self {
			continue
		}
		asking.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, nodeLimit)
			defer cancel()
			some, err := f.Ask(ctx, n, key, limit)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, some...)
			if err != nil {
				missing = append(missing, holdfast.MissingNode{Node: n.ID, Why: err.Error()})
			}
			return nil
		})
	}
	_ = asking.Wait() // the functions return no error
	sort.Slice(missing, func(i, j int) bool { return missing[i].Node < missing[j].Node })
	return holdfast.EndingReport{Endings: merge(all, limit), NoAnswer: missing}, nil
}

// merge sorts endings, the newest first, and leaves out what several nodes know: the
// epoch's own node knows best.
func merge(all []holdfast.Ending, limit int) []holdfast.Ending {
	type epoch struct {
		key   holdfast.SessionKey
		epoch holdfast.Epoch
	}
	best := map[epoch]holdfast.Ending{}
	out := []holdfast.Ending{}
	for _, e := range all {
		at := epoch{e.Key, e.Epoch}
		have, ok := best[at]
		switch {
		case e.Epoch == 0:
			out = append(out, e)
		case !ok || have.SeenBy != "" && (e.SeenBy == "" || e.SeenBy < have.SeenBy):
			best[at] = e
		}
	}
	for _, e := range best {
		out = append(out, e)
	}
	sort.Slice(out, func(i, j int) bool {
		x, y := &out[i], &out[j]
		return cmp.Or(y.At.Compare(x.At), cmp.Compare(x.Key, y.Key), cmp.Compare(y.Epoch, x.Epoch)) < 0
	})
	if limit > 0 {
		out = out[:min(limit, len(out))]
	}
	return out
}
