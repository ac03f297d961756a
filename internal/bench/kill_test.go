package bench_test

import (
	"log/slog"
	"os"
	"strconv"
	"testing"

	"holdfast/internal/bench"
	"holdfast/internal/guardian"
	"holdfast/internal/lab/labtest"
)

// TestMain is a guardian too: the benches start this binary as one.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "guardian" {
		os.Exit(guardian.Main(os.Args[2], slog.New(slog.NewTextHandler(os.Stderr, nil))))
	}
	os.Exit(labtest.Main(m))
}

// The whole experiment, small: it has to find every container dead by all three
// ways.
func TestKill(t *testing.T) {
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
