package bench_test

import (
	"path/filepath"
	"testing"

	"holdfast/bench"
	"holdfast/test/lab/labtest"
)

// The whole experiment, small: all containers have to come up by both.
func TestRun(t *testing.T) {
	labtest.NeedLong(t, "brings up containers in five ways; test/run runs the same commands")
	program := filepath.Join(t.TempDir(), "holdfast")
	if err := labtest.Build(t.Context(), "holdfast/cmd/holdfast", program); err != nil {
		t.Fatal(err)
	}
	res, err := bench.Run(t.Context(), bench.RunOptions{N: 1, Size: 1, Rate: 20, Holdfast: []string{program, "run"}, Progress: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	if res.Failed != 0 || len(res.Rows) != 5 || res.Score <= 0 {
		t.Errorf("got %+v", res)
	}
	for _, r := range res.Rows {
		if r.N != 1 || r.P50 <= 0 {
			t.Errorf("row %+v", r)
		}
	}
	if err := res.WriteText(t.Output()); err != nil {
		t.Error(err)
	}
}
