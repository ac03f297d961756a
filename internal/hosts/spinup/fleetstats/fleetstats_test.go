package fleetstats_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"holdfast"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/fleetstats"
)

func nodes(n int) func(context.Context) ([]holdfast.Node, error) {
	return func(context.Context) ([]holdfast.Node, error) {
		var list []holdfast.Node
		for i := range n {
			list = append(list, holdfast.Node{ID: holdfast.NodeID(fmt.Sprintf("n%03d", i))})
		}
		return list, nil
	}
}

func sketch(spinup.Question) (spinup.Sketch, error) {
	r := spinup.NewRecord(spinup.ForRun, "app", time.Unix(1, 0), spinup.Cohort{})
	r.Times[spinup.Create] = holdfast.Millis(time.Second)
	return spinup.NewSketch([]spinup.Record{r}, spinup.Question{}, spinup.DefaultRules()), nil
}

// All nodes are asked once, at most so many at a time. Nodes that refuse or do not answer are
// named with the reason, and the others count.
func TestNodesAreAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var own, now, most atomic.Int32
		f := fleetstats.Fleet{
			Self: "n000", Nodes: nodes(400),
			Own: func(q spinup.Question) (spinup.Sketch, error) { own.Add(1); return sketch(q) },
			Ask: func(ctx context.Context, n holdfast.Node, q spinup.Question) (spinup.Sketch, error) {
				most.Store(max(most.Load(), now.Add(1)))
				defer now.Add(-1)
				switch n.ID {
				case "n001":
					<-ctx.Done()
					return spinup.Sketch{}, ctx.Err()
				case "n002":
					return spinup.Sketch{}, errors.New("connection refused")
				case "n003":
					return spinup.Sketch{Count: -1}, nil
				}
				time.Sleep(100 * time.Millisecond)
				return sketch(q)
			},
		}
		begun := time.Now()
		r, err := f.Report(t.Context(), spinup.Question{})
		if err != nil || r.Nodes != 397 || r.Count != 397 || own.Load() != 1 || most.Load() > 128 || most.Load() < 64 {
			t.Errorf("%d nodes, %d records, this node %d times, %d at once: %v", r.Nodes, r.Count, own.Load(), most.Load(), err)
		}
		if took := time.Since(begun); took != fleetstats.NodeLimit {
			t.Errorf("it took %v", took)
		}
		var why []string
		for _, m := range r.NoAnswer {
			why = append(why, fmt.Sprintf("%s: %s", m.Node, m.Why))
		}
		if got, want := strings.Join(why, "; "), "n001: context deadline exceeded; n002: connection refused; n003: "+spinup.ErrSketch.Error(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}

// A request that ends early has the answers until then.
func TestEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fleetstats.Fleet{
			Self: "n000", Nodes: nodes(300), Own: sketch,
			Ask: func(ctx context.Context, _ holdfast.Node, _ spinup.Question) (spinup.Sketch, error) {
				<-ctx.Done()
				return spinup.Sketch{}, ctx.Err()
			},
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r, err := f.Report(ctx, spinup.Question{})
		if err != nil || r.Nodes != 1 || len(r.NoAnswer) != 299 {
			t.Errorf("%d nodes, %d without an answer, %v", r.Nodes, len(r.NoAnswer), err)
		}
	})
}

func TestFleetCannotBeListed(t *testing.T) {
	f := fleetstats.Fleet{Nodes: func(context.Context) ([]holdfast.Node, error) { return nil, holdfast.ErrStore }}
	if _, err := f.Report(t.Context(), spinup.Question{}); !errors.Is(err, holdfast.ErrStore) {
		t.Error(err)
	}
	if _, err := f.Report(t.Context(), spinup.Question{By: "colour"}); err == nil || errors.Is(err, holdfast.ErrStore) {
		t.Error(err)
	}
}
