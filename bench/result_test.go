package bench

import "testing"

func TestNewRowUsesNearestRank(t *testing.T) {
	got := NewRow("x", "ms", []float64{5, 1, 4, 2, 3})
	want := Row{Name: "x", Unit: "ms", N: 5, Min: 1, P50: 3, P99: 5, Max: 5}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := NewRow("none", "ms", nil); got != (Row{Name: "none", Unit: "ms"}) {
		t.Errorf("no samples: got %+v", got)
	}
}
