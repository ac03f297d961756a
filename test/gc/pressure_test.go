package gc

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/bench"
	"holdfast/test/lab"
)

// TestPressure is a slice of `holdfast bench gc --pressure`: spin-ups fill a disk
// without a pause. It stays under the critical mark, and each deletion beside them
// has its reason and was logged.
func TestPressure(t *testing.T) {
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

// TestTable is a slice of `holdfast bench gc`: each way of collecting frees the disk
// beside creates, none of which fails, and the latencies are drawn. What the creates
// take is measured by the whole.
func TestTable(t *testing.T) {
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

// TestLocked is a slice of `holdfast bench gc --locked`: both removals are timed, and
// of one all files were linked away before, which the bench sees to.
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
