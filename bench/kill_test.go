package bench_test

import (
	"log/slog"
	"os"
	"strconv"
	"testing"

	"holdfast/bench"
)

// The whole experiment, small: it has to find every container dead by all three
// ways.
func TestKill(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: a private engine takes its time, and root")
	}
	n := 6
	if s := os.Getenv("HOLDFAST_BENCH_N"); s != "" {
		n, _ = strconv.Atoi(s)
	}
	res, err := bench.Kill(t.Context(), bench.KillOptions{
		N: n, Guardian: []string{"/proc/self/exe", "guardian", t.TempDir()},
		Progress: t.Output(), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	if res.Failed != 0 || len(res.Rows) != 6 || res.Score <= 0 {
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

// The trace has all stages of each container's kill, and the engine's goroutines.
func TestKillTrace(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: a private engine takes its time, and root")
	}
	const n = 8
	res, err := bench.Kill(t.Context(), bench.KillOptions{
		N: n, Image: bench.ImageSleep, Trace: true, Guardian: []string{"/proc/self/exe", "guardian", t.TempDir()},
		Progress: t.Output(), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	d, ok := res.Details.(bench.KillTrace)
	if !ok || res.Failed != 0 || d.Samples == 0 || len(d.Stages) != 4 {
		t.Fatalf("%+v", res)
	}
	for _, r := range append(d.Stages, d.Spans...) {
		if r.N != n || r.P50 <= 0 {
			t.Errorf("stage %+v", r)
		}
	}
	if err := res.WriteText(t.Output()); err != nil {
		t.Error(err)
	}
}
