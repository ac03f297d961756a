package drain

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"holdfast"
)

// faulty is a node whose parts can be told to fail: the fault under test is
// what a drain does when a part does not do its job. The whole is tested with a
// real engine and store in test/agent.
type faulty struct {
	sessions      int
	storeBackIn   time.Duration // how long Release fails
	left          []holdfast.Leftover
	notHad        []holdfast.Leftover // what Condemn cannot get hold of
	unsettled     []holdfast.Leftover
	booting       int
	settleTakes   time.Duration
	calls         []string
	started       time.Time
	releaseFailed int
}

func (n *faulty) ID() holdfast.NodeID { return "n1" }

func (n *faulty) StopClaiming() int {
	n.calls = append(n.calls, "stop")
	n.started = time.Now()
	return n.booting
}

func (n *faulty) Condemn(context.Context, bool) (int, int, []holdfast.Leftover) {
	n.calls = append(n.calls, "condemn")
	return n.sessions, n.sessions, n.notHad
}

func (n *faulty) Kill(context.Context, bool) holdfast.KillReport {
	n.calls = append(n.calls, "kill")
	r := holdfast.KillReport{Left: n.left, Steps: []holdfast.Step{{Name: "signal", Count: n.sessions}}, Notice: "not quiet"}
	for range n.sessions - len(n.left) {
		r.Dead = append(r.Dead, "c")
	}
	return r
}

func (n *faulty) Release(context.Context) (int, error) {
	if time.Since(n.started) < n.storeBackIn {
		n.releaseFailed++
		return 0, errors.New("store away")
	}
	n.calls = append(n.calls, "release")
	return n.sessions - len(n.left), nil
}

func (n *faulty) Settle(ctx context.Context) (int, []holdfast.Leftover) {
	n.calls = append(n.calls, "settle")
	select {
	case <-time.After(n.settleTakes):
		return n.booting, nil
	case <-ctx.Done():
		return n.booting, n.unsettled
	}
}

func TestDrainGoesThroughItsStepsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &faulty{sessions: 3, booting: 1}
		var told []string
		r := Run(t.Context(), n, Options{Budget: time.Second}, func(s holdfast.Step) { told = append(told, s.Name) })
		if want := []string{"stop", "condemn", "kill", "release", "settle"}; !slices.Equal(n.calls, want) {
			t.Errorf("calls %v, want %v", n.calls, want)
		}
		if want := []string{"stop claiming", "condemn", "kill", "kill: signal", "release", "settle"}; !slices.Equal(told, want) {
			t.Errorf("progress %v, want %v", told, want)
		}
		if !r.Clean() || r.Dead != 3 || r.Released != 3 || r.Notice != "not quiet" {
			t.Errorf("report %+v", r)
		}
	})
}

func TestDrainWaitsForTheStoreToComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &faulty{sessions: 2, storeBackIn: 400 * time.Millisecond}
		r := Run(t.Context(), n, Options{Budget: time.Second}, nil)
		if !r.Clean() || n.releaseFailed == 0 {
			t.Errorf("failed tries %d, report %+v", n.releaseFailed, r)
		}
	})
}

func TestDrainEndsAtItsBudgetAndIsNotClean(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &faulty{sessions: 2, storeBackIn: time.Hour, booting: 1, settleTakes: time.Hour}
		start := time.Now()
		r := Run(t.Context(), n, Options{Budget: time.Second}, nil)
		if took := time.Since(start); took != time.Second {
			t.Errorf("took %v, the budget is 1s", took)
		}
		if r.Clean() || r.Dead != 2 || r.Released != 0 {
			t.Errorf("report %+v", r)
		}
	})
}

func TestDrainNamesWhatIsLeftAndGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &faulty{sessions: 2, left: []holdfast.Leftover{{Name: "stuck"}}, notHad: []holdfast.Leftover{{Name: "theirs"}}}
		r := Run(t.Context(), n, Options{Budget: time.Second}, nil)
		if r.Clean() || len(r.Left) != 2 || r.Left[0].Name != "theirs" || r.Left[1].Name != "stuck" || r.Released != 1 {
			t.Errorf("report %+v", r)
		}
	})
}

// A boot that is not undone may have a container, and a session that another
// stop was ending when the drain came may still have its own: neither is ever
// reported as if it were gone.
func TestDrainIsNotCleanWhileSomethingIsStillEnding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &faulty{sessions: 1, booting: 1, settleTakes: time.Hour, unsettled: []holdfast.Leftover{{Name: "boot"}}}
		r := Run(t.Context(), n, Options{Budget: time.Second}, nil)
		if r.Clean() || len(r.Left) != 1 || r.Left[0].Name != "boot" {
			t.Errorf("report %+v", r)
		}
	})
}
