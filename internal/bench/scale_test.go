package bench_test

import (
	"testing"
	"time"

	"holdfast/internal/bench"
)

func TestScale(t *testing.T) {
	r, err := bench.Scale(t.Context(), bench.ScaleOptions{
		Nodes: 20, Sessions: 400, Lost: 0.1, Directories: 2, Watchers: 3, Boot: 20 * time.Millisecond, Steady: 2 * time.Second,
		Member: []string{"/proc/self/exe", "bench-etcd-member"}, Directory: []string{"/proc/self/exe", "bench-directory"},
		Progress: t.Output(),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.WriteText(t.Output()); err != nil {
		t.Error(err)
	}
}
