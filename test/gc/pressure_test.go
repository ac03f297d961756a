package gc

import (
	"testing"
	"time"

	"holdfast/internal/bench"
	"holdfast/internal/lab"
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
