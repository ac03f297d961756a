package spinup_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast"
	"holdfast/test/spinup/scene"
)

// TestRecordedTruth compares the wall times of a recorded pull with the times of the proxy
// for the download, and of the engine's debug log for the extraction. They may differ by
// 5 % or 20 ms, whichever is more. BenchmarkAgainstTruth in test/spinup measures the
// difference with a real engine.
func TestRecordedTruth(t *testing.T) {
	paths, err := filepath.Glob("testdata/*/*.truth.json")
	if err != nil || len(paths) == 0 {
		t.Fatalf("nothing is recorded, %v", err)
	}
	recorded := streams(t)
	for _, path := range paths {
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		truth, err := scene.ReadTruth(file, begun)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		dir, name := filepath.Split(strings.TrimSuffix(path, ".truth.json"))
		f := recorded[filepath.Base(dir)+"/"+name]
		p, err := reduce(f, options(f, true))
		if err != nil {
			t.Errorf("%s: %v", path, err)
		}
		for _, c := range []struct {
			what  string
			ours  holdfast.Millis
			truth []scene.Span
		}{{"download", p.Download.Wall, truth.Download}, {"extract", p.Extract.Wall, truth.Extract}} {
			want := scene.Covered(c.truth)
			off := (time.Duration(c.ours) - want).Abs()
			t.Logf("%s: %s of %v, in truth %v", path, c.what, time.Duration(c.ours), want)
			if want == 0 || off > max(want/20, 20*time.Millisecond) {
				t.Errorf("%s: the %s took %v, in truth %v", path, c.what, time.Duration(c.ours), want)
			}
		}
	}
}
