package gc

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/bench"
	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
)

// TestPressure runs a part of `holdfast bench gc --pressure`: spin-ups fill a disk continuously.
// The disk stays below the critical level, and each deletion during a spin-up has its reason in
// the log.
func TestPressure(t *testing.T) {
	labtest.NeedLong(t, "half a minute of spin-ups on a full disk; TestInterleavings collects beside spin-ups")
	if !lab.Inside() {
		t.Skip("-short: a private engine takes its time, and root")
	}
	r, err := bench.GC(t.Context(), bench.GCOptions{
		Pressure: true, Duration: 30 * time.Second, Rate: 0.5, Progress: t.Output(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", r)
	if r.Failed != 0 || r.Score < 1 {
		t.Errorf("failed %d, score %.3f: %q", r.Failed, r.Score, r.Notes)
	}
}

// TestTable runs a part of `holdfast bench gc`: each way of collecting frees the disk during
// creates, no create fails, and the plot has the latencies. Only the whole bench measures the
// creates.
func TestTable(t *testing.T) {
	labtest.NeedLong(t, "half a minute of collections and creates; TestLocked runs another part of the bench")
	if !lab.Inside() {
		t.Skip("-short: a private engine takes its time, and root")
	}
	plot := filepath.Join(t.TempDir(), "gc.html")
	r, err := bench.GC(t.Context(), bench.GCOptions{
		Images: 2, Files: 300, Rate: 2, Duration: 5 * time.Second, Rounds: 1, Plot: plot, Progress: t.Output(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", r)
	for _, row := range r.Rows {
		if row.N < 5 || row.P50 <= 0 {
			t.Errorf("%+v", row)
		}
	}
	if page, err := os.ReadFile(plot); err != nil || !strings.Contains(string(page), "<svg") {
		t.Errorf("the plot of %d bytes: %v", len(page), err)
	}
}

// TestLocked runs a part of `holdfast bench gc --locked`: it times both removals. For one of them
// the bench links all files away first.
func TestLocked(t *testing.T) {
	if !lab.Inside() {
		t.Skip("-short: a private engine takes its time, and root")
	}
	r, err := bench.GC(t.Context(), bench.GCOptions{Locked: true, Pairs: 1, Files: 500, Progress: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Rows) != 2 || r.Rows[0].N != 1 || r.Rows[0].P50 <= 0 || r.Rows[1].P50 <= 0 {
		t.Errorf("%+v", r)
	}
}
