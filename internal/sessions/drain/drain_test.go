package drain

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast"
)

// faulty is a node whose parts can fail. The tests check what a drain does if a part
// fails. test/agent tests a drain with a real engine and store.
type faulty struct {
	sessions      int
	storeBackIn   time.Duration // how long Release fails
	left          []holdfast.Leftover
	notHad        []holdfast.Leftover // the containers that MarkTerminating cannot open
	unsettled     []holdfast.Leftover
	booting       int
	settleTakes   time.Duration
	calls         []string
	started       time.Time
	releaseFailed int
	prepareTakes  time.Duration
	snapshotTakes time.Duration
	failed        []holdfast.SnapshotFailure
	waitingFor    time.Duration // how long clients wait
}

func (n *faulty) ID() holdfast.NodeID { return "n1" }

func (n *faulty) StopClaiming() int {
	n.calls = append(n.calls, "stop")
	n.started = time.Now()
	return n.booting
}

func (n *faulty) Choose(time.Time) {}

func (n *faulty) Save(context.Context) holdfast.SaveReport { return holdfast.SaveReport{} }

func (n *faulty) Prepare(ctx context.Context) int {
	n.calls = append(n.calls, "prepare")
	select {
	case <-time.After(n.prepareTakes):
		return n.sessions
	case <-ctx.Done():
		return 0
	}
}

func (n *faulty) Snapshot(ctx context.Context) holdfast.SnapshotReport {
	n.calls = append(n.calls, "snapshot")
	select {
	case <-time.After(n.snapshotTakes):
	case <-ctx.Done():
		n.failed = append(n.failed, holdfast.SnapshotFailure{Key: "slow", Reason: "not done in time"})
	}
	return holdfast.SnapshotReport{Count: 2, Failed: n.failed}
}

func (n *faulty) HandOverSuspended(context.Context) (int, string) {
	n.calls = append(n.calls, "suspended")
	return 0, ""
}

func (n *faulty) DrainConnections(ctx context.Context) int {
	n.calls = append(n.calls, "drain clients")
	select {
	case <-time.After(n.waitingFor):
		return 0
	case <-ctx.Done():
		return 4
	}
}

func (n *faulty) MarkTerminating(context.Context, bool) (int, int, []holdfast.Leftover) {
	n.calls = append(n.calls, "mark terminating")
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
		if want := []string{"stop", "prepare", "mark terminating", "kill", "snapshot", "release", "settle", "suspended", "drain clients"}; !slices.Equal(n.calls, want) {
			t.Errorf("calls %v, want %v", n.calls, want)
		}
		if want := []string{"stop claiming", "prepare", "mark terminating", "kill", "kill: signal", "snapshot", "release", "save", "settle", "suspended", "drain clients"}; !slices.Equal(told, want) {
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

// A boot that has not ended may have a container. So may a session that another stop was
// ending when the drain began. Neither is ever reported as gone.
func TestDrainIsNotCleanWhileSomethingIsStillEnding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &faulty{sessions: 1, booting: 1, settleTakes: time.Hour, unsettled: []holdfast.Leftover{{Name: "boot"}}}
		r := Run(t.Context(), n, Options{Budget: time.Second}, nil)
		if r.Clean() || len(r.Left) != 1 || r.Left[0].Name != "boot" {
			t.Errorf("report %+v", r)
		}
	})
}

// step returns a step of the report.
func step(t *testing.T, r holdfast.DrainReport, name string) holdfast.Step {
	t.Helper()
	for _, s := range r.Steps {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("no step %q in %+v", name, r.Steps)
	return holdfast.Step{}
}

// The node gives up ownership within a second of the notice, also if successors answer
// late.
func TestPrepareTakesAPartOfTheBudget(t *testing.T) {
	for budget, want := range map[time.Duration]time.Duration{30 * time.Second: 500 * time.Millisecond, time.Second: 100 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			n := &faulty{sessions: 2, prepareTakes: time.Hour}
			r := Run(t.Context(), n, Options{Budget: budget}, nil)
			if s := step(t, r, "prepare"); s.Took != holdfast.Millis(want) || s.Count != 0 || !r.Clean() {
				t.Errorf("of %v: %+v", budget, r)
			}
		})
	}
}

func TestSnapshotsLeaveTimeToGiveSessionsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &faulty{sessions: 2, snapshotTakes: time.Hour, storeBackIn: 29500 * time.Millisecond}
		r := Run(t.Context(), n, Options{Budget: 30 * time.Second}, nil)
		if s := step(t, r, "snapshot"); s.Took != holdfast.Millis(29*time.Second) || s.Count != 2 {
			t.Errorf("%+v", s)
		}
		if !r.Clean() || r.Released != 2 || len(r.Snapshots.Failed) != 1 {
			t.Errorf("%+v", r)
		}
		if !strings.Contains(r.Notice, "1 of 2 snapshots failed") || !strings.Contains(r.Notice, "slow: not done in time") {
			t.Errorf("notice %q", r.Notice)
		}
	})
}

func TestLingerEndsWithTheLastThatWaitsOrTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &faulty{sessions: 1, waitingFor: 3 * time.Second}
		r := Run(t.Context(), n, Options{Budget: 10 * time.Second}, nil)
		if s := step(t, r, "drain clients"); s.Took != holdfast.Millis(3*time.Second) || s.Count != 0 || r.Took != 0 {
			t.Errorf("%+v, took %v", s, r.Took)
		}
		n = &faulty{sessions: 1, waitingFor: time.Hour}
		start := time.Now()
		r = Run(t.Context(), n, Options{Budget: 10 * time.Second}, nil)
		if s := step(t, r, "drain clients"); time.Since(start) != 10*time.Second || s.Count != 4 || !r.Clean() {
			t.Errorf("%+v after %v", s, time.Since(start))
		}
	})
}

// keeper is a node that saves some of its sessions.
type keeper struct {
	faulty
	saveTakes time.Duration
	until     time.Time
	report    holdfast.SaveReport
}

func (k *keeper) Choose(until time.Time) { k.until = until }

func (k *keeper) Save(ctx context.Context) holdfast.SaveReport {
	select {
	case <-time.After(k.saveTakes):
	case <-ctx.Done():
	}
	return k.report
}

// Saving does not delay the other sessions. Its results are in the report.
func TestSavingKeepsNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &keeper{faulty: faulty{sessions: 2, failed: []holdfast.SnapshotFailure{{Key: "other", Reason: "broken"}}}, saveTakes: 20 * time.Second, report: holdfast.SaveReport{
			Memory:    holdfast.MemoryReport{Saved: 2, Lost: []holdfast.LostMemory{{Key: "big", Reason: "it is too big"}}},
			Kill:      holdfast.KillReport{Dead: []string{"a", "b", "c"}, Left: []holdfast.Leftover{{Name: "d"}}},
			Snapshots: holdfast.SnapshotReport{Count: 1, Failed: []holdfast.SnapshotFailure{{Key: "saved", Reason: "broken"}}}, Released: 2,
		}}
		begun := time.Now()
		released := time.Duration(-1)
		r := Run(t.Context(), k, Options{Budget: 30 * time.Second}, func(s holdfast.Step) {
			if s.Name == "release" && released < 0 {
				released = time.Since(begun)
			}
		})
		if released != 0 {
			t.Errorf("the others were given up after %v", released)
		}
		if k.until != begun.Add(27*time.Second) {
			t.Errorf("there is time until %v", k.until.Sub(begun))
		}
		if r.Took < holdfast.Millis(k.saveTakes) || r.Dead != 5 || len(r.Left) != 1 || r.Memory.Saved != 2 || r.Snapshots.Count != 3 || len(r.Snapshots.Failed) != 2 {
			t.Errorf("%+v", r)
		}
		// The two other sessions, the two that Save gave up, and the two of the last Release.
		if r.Released != 2+2+2 {
			t.Errorf("%d are released", r.Released)
		}
		if !strings.Contains(r.Notice, "the memory of session big is lost: it is too big") {
			t.Errorf("notice %q", r.Notice)
		}
	})
}
