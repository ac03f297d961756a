package fleet

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/bench/fleet"
	"holdfast/test/lab/labtest"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// programs builds holdfast and holdfast-bench as they are shipped.
func programs(t *testing.T) (program, bench string) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: agents, an etcd of three and an engine take their time, and root")
	}
	dir := t.TempDir()
	for _, name := range []string{"holdfast", "holdfast-bench"} {
		if err := labtest.Build(t.Context(), "holdfast/cmd/"+name, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "holdfast"), filepath.Join(dir, "holdfast-bench")
}

// run runs the experiment and logs its report. If it failed, it also logs the output of the
// nodes and of etcd.
func run(t *testing.T, o fleet.Options) fleet.Report {
	t.Helper()
	o.Program, o.Bench = programs(t)
	o.Progress, o.Dir = t.Output(), t.TempDir()
	r, err := fleet.Run(t.Context(), o)
	t.Cleanup(func() {
		if t.Failed() {
			showLogs(t, o.Dir)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Result.WriteText(t.Output()); err != nil {
		t.Error(err)
	}
	return r
}

// sound checks what holds under all faults: no session runs twice, the store's history is
// linearizable, no container serves two claims, and clients of a node with a notice only wait.
func sound(t *testing.T, o fleet.Options, r fleet.Report) {
	t.Helper()
	if v := r.Details.Verdict; v.Overlaps > 0 || v.History != "" || v.HandedOn != "" {
		t.Errorf("with seed %d: %s", o.Seed, v)
	}
	if n := r.Details.FailedOnNotice(); n > 0 {
		t.Errorf("%d clients could not connect after a notice: %v", n, r.Details.Errors)
	}
}

// shown is how much of each log a failed test shows, in bytes.
const shown = 16 << 10

func showLogs(t *testing.T, dir string) {
	logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil || len(logs) == 0 {
		t.Errorf("no logs: %v", err)
	}
	deadmen, err := filepath.Glob(filepath.Join(dir, "*", "run", "deadman.log"))
	if err != nil {
		t.Error(err)
	}
	for _, f := range append(logs, deadmen...) {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Error(err)
		}
		t.Logf("%s:\n%s", strings.TrimPrefix(f, dir), text[max(0, len(text)-shown):])
	}
}

// TestEverythingHappens: under all faults of nodes and etcd, no session runs twice, no
// container belongs to two claims, with any pool, and the store's history is linearizable.
// After the last act all sessions are served again.
// Clients of a node with a preemption notice only wait.
func TestEverythingHappens(t *testing.T) {
	length := time.Second // that is until everything has happened once
	if labtest.Long() {
		length = 10 * time.Minute
	}
	o := fleet.Options{
		Agents: 3, Sessions: labtest.Count(6, 18), Rate: float64(labtest.Count(2, 8)), For: length, Every: 4 * time.Second,
		Chaos: fleet.Mixed, Seed: uint64(time.Now().UnixNano()),
		ParkTime: 2 * time.Minute, // a slow machine is not what is looked for
		Pools:    "pooled,bridge,warm",
	}
	r := run(t, o)
	v := r.Details.Verdict
	sound(t, o, r)
	if v.Alive.Keys != o.Sessions || v.Alive.Lives <= o.Sessions || v.Asked.Claims <= o.Sessions {
		t.Errorf("nothing moved: %s, %s", v.Alive, v.Asked)
	}
	if v.Warm == 0 || v.Warm == v.Containers {
		t.Errorf("of %d containers %d were warm", v.Containers, v.Warm)
	}
	for _, act := range fleet.Acts(false) {
		if r.Details.Acts[act] == 0 {
			t.Errorf("%s never happened in %v", act, r.Details.Acts)
		}
	}
	if len(r.Details.Costs) != len(fleet.Acts(false)) || r.Details.Back <= 0 {
		t.Errorf("back after %v; costs %v", r.Details.Back, r.Details.Costs)
	}
	if seed := fmt.Sprint(o.Seed); !strings.Contains(strings.Join(r.Result.Notes, " "), seed) {
		t.Errorf("the report does not name the seed %s", seed)
	}
}

// TestMemoryMoves: sessions keep their memory under faults, in moves by command, in drains
// and in suspends. By the records of the containers, no session runs twice: a session that
// continues in another container begins a new life there.
func TestMemoryMoves(t *testing.T) {
	labtest.NeedLong(t, "test/agent moves sessions with their memory, one at a time; -long does it in a fleet with faults")
	o := fleet.Options{
		Agents: 3, Sessions: 8, Rate: 2, For: 5 * time.Minute, Every: 4 * time.Second,
		Chaos: fleet.Mixed, Seed: uint64(time.Now().UnixNano()),
		TTL: 6 * time.Second, ParkTime: 2 * time.Minute, Runsc: labtest.Runsc(t),
	}
	r := run(t, o)
	v := r.Details.Verdict
	sound(t, o, r)
	if v.Alive.Keys <= o.Sessions || v.Alive.Lives <= v.Alive.Keys || v.Restored == 0 { // copies have keys of their own
		t.Errorf("nothing moved, or no session was forked: %s", v)
	}
	if r.Details.Acts[fleet.Move] == 0 || r.Details.Acts[fleet.Suspend] == 0 || r.Details.Acts[fleet.Fork] == 0 {
		t.Errorf("it did not happen: %v", r.Details.Acts)
	}
}

// TestSleepersRunOnce: sessions that sleep are under the same guarantees. A node that is cut off, or
// whose agent is gone, leaves no frozen container that continues later.
func TestSleepersRunOnce(t *testing.T) {
	labtest.NeedLong(t, "test/agent freezes single sessions; -long does it in a fleet with faults")
	o := fleet.Options{
		Agents: 3, Sessions: 12, Rate: 2, For: time.Second, Every: 4 * time.Second,
		Chaos: fleet.Mixed, Seed: uint64(time.Now().UnixNano()), ParkTime: 2 * time.Minute, Sleep: time.Second,
	}
	r := run(t, o)
	v := r.Details.Verdict
	sound(t, o, r)
	if v.Alive.Lives <= o.Sessions {
		t.Errorf("nothing moved: %s", v)
	}
	slept := slices.IndexFunc(r.Result.Notes, func(n string) bool { return strings.Contains(n, "slept on the nodes of") })
	if slept < 0 || strings.Contains(r.Result.Notes[slept], ": 0 slept") {
		t.Errorf("no session slept: %v", r.Result.Notes)
	}
}

// TestBrokenFenceIsCaught: nodes that go on beyond the end of their leases are
// what the checks are there for.
func TestBrokenFenceIsCaught(t *testing.T) {
	labtest.NeedLong(t, "runs a fleet until its fence fails")
	r := run(t, fleet.Options{
		Agents: 2, Sessions: 6, Rate: 5, For: 12 * time.Second, Every: 5 * time.Second,
		Chaos: string(fleet.CutLong), BreakFence: true,
	})
	if v := r.Details.Verdict; v.Overlaps == 0 || r.Result.Failed < v.Overlaps || v.History != "" {
		t.Errorf("not caught: %s", v)
	}
}
