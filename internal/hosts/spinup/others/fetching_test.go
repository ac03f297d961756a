package others

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"holdfast/internal/hosts/spinup"
)

func TestLayersBeingFetchedAreUnderWay(t *testing.T) {
	root, busy, begun, ended := t.TempDir(), false, 0, 0
	f := fetching{cfg: Config{
		DataRoot: func() string { return root },
		Busy:     func() bool { return busy },
		Begin:    func(spinup.Kind, string) func() { begun++; return func() { ended++ } },
	}}
	now := time.Now()
	look := func(what string, wantBegun, wantEnded int) {
		t.Helper()
		f.look(now)
		if begun != wantBegun || ended != wantEnded {
			t.Errorf("%s: begun %d times, ended %d times; want %d and %d", what, begun, ended, wantBegun, wantEnded)
		}
	}
	look("no directory", 0, 0)
	if err := os.Mkdir(filepath.Join(root, "tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	blob := filepath.Join(root, "tmp", "GetImageBlob123")
	write := func(path string) {
		t.Helper()
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(root, "tmp", "docker-import-1"))
	look("another file", 0, 0)
	write(blob)
	look("a layer", 1, 0)
	look("still", 1, 0)
	now = now.Add(announceAgain)
	look("for long", 2, 1)
	busy = true
	look("it may be our own", 2, 2)
	busy = false
	look("it is not", 3, 2)
	if err := os.Remove(blob); err != nil {
		t.Fatal(err)
	}
	look("extracted", 3, 3)
	f.reported = true
	look("the engine reports one", 4, 3)
	f.reported = false
	look("and its end", 4, 4)
	f.cfg.DataRoot = func() string { return "" }
	look("an engine elsewhere", 4, 4)
}
