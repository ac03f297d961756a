package sleep

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/bench"
)

// stagesOf are stages whose agents have so many MB.
func stagesOf(mb ...uint64) (all []Stage) {
	for _, n := range mb {
		all = append(all, Stage{Name: "stage", Agent: bench.Memory{Processes: 1, RSS: n * 1e6}, Engine: bench.Memory{RSS: 1e6}})
	}
	return all
}

// A growth above the bar is a failure. The bar grows with the sessions, and does not shrink
// with them. Sockets have no bar.
func TestBar(t *testing.T) {
	for _, c := range []struct {
		sessions       int
		without, alone uint64 // MB
		failed         int
	}{
		{1000, 40, 90, 0}, {1000, 40, 91, 1}, {10, 40, 90, 0}, {10, 40, 91, 1}, {2000, 40, 140, 0}, {2000, 40, 141, 1},
	} {
		x := &experiment{o: Options{Sessions: c.sessions}, woken: []float64{200}}
		r := x.hostResult(bench.Machine{}, stagesOf(c.without, c.alone, 1000))
		if r.Failed != c.failed || (r.Score < 1) != (c.failed > 0) {
			t.Errorf("%d sessions from %d to %d MB: failed %d, score %v", c.sessions, c.without, c.alone, r.Failed, r.Score)
		}
	}
	x := &experiment{o: Options{Sessions: 1000}, failed: 2}
	x.refused.Add(3)
	r := x.hostResult(bench.Machine{}, stagesOf(40, 60, 80))
	if r.Failed != 5 || !strings.Contains(strings.Join(r.Notes, "\n"), "grew by 20.0 MB, 20.0 KB for each") {
		t.Errorf("failed %d, %q", r.Failed, r.Notes)
	}
	var text strings.Builder
	if err := r.WriteText(&text); err != nil || !strings.Contains(text.String(), "all processes: RSS") {
		t.Errorf("%v\n%s", err, text.String())
	}
}

func TestOptions(t *testing.T) {
	good := Options{Sleeps: 1, Sockets: 1, Sessions: 1, Runsc: os.Args[0]}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	for name, bad := range map[string]Options{
		"no runsc":          {Sleeps: 1, Sockets: 1, Sessions: 1},
		"too many sessions": {Sleeps: 1, Sockets: 1, Sessions: maxSessions + 1, Runsc: os.Args[0]},
	} {
		if bad.Check() == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func TestUsed(t *testing.T) {
	dir := t.TempDir()
	images := filepath.Join(dir, "images")
	if err := os.Mkdir(images, 0o700); err != nil {
		t.Fatal(err)
	}
	for path, n := range map[string]int{filepath.Join(dir, "file"): 1 << 20, filepath.Join(images, "image"): 4 << 20} {
		if err := os.WriteFile(path, make([]byte, n), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := used(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	some, err := used(dir, images)
	if err != nil || all-some < 4<<20 || some < 1<<20 || some > 2<<20 {
		t.Errorf("%d bytes, without the images %d: %v", all, some, err)
	}
}
