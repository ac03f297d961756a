package jobs_test

import (
	"os"
	"path/filepath"
	"testing"

	"holdfast/bench/jobs"
	"holdfast/bench/rig"
	"holdfast/test/lab/labtest"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// The whole experiment, small: each run has its output in each way.
func TestRun(t *testing.T) {
	labtest.NeedLong(t, "runs a dozen jobs; test/agent TestJobsOnTheFleet runs the same commands")
	dir := t.TempDir()
	for _, name := range []string{"holdfast", "holdfast-bench"} {
		if err := labtest.Build(t.Context(), "holdfast/cmd/"+name, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	r, err := jobs.Run(t.Context(), jobs.Options{
		Program: filepath.Join(dir, "holdfast"), Member: []string{filepath.Join(dir, "holdfast-bench"), rig.RoleMember},
		N: 4, Nodes: 2, Rounds: 1, Progress: t.Output(),
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Failed != 0 || len(r.Rows) != 6 || r.Score <= 0 {
		t.Errorf("got %+v", r)
	}
	if err := r.WriteText(t.Output()); err != nil {
		t.Error(err)
	}
}

func TestOptions(t *testing.T) {
	good := jobs.Options{N: 1, Nodes: 2, Rounds: 1}
	for _, o := range []jobs.Options{good, {N: 257, Nodes: 2, Rounds: 1}, {N: 1, Nodes: 1, Rounds: 1}, {N: 1, Nodes: 2}} {
		if err := o.Check(); (err == nil) != (o.N == 1 && o.Nodes == 2 && o.Rounds == 1) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
