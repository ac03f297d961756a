package bench

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// A peer's lines are counted from the moment that they were heard, and its program can end its
// own children before it ends.
func TestPeer(t *testing.T) {
	dir := t.TempDir()
	program, undone, more := filepath.Join(dir, "p.sh"), filepath.Join(dir, "undone"), filepath.Join(dir, "more")
	text := `#!/bin/sh
trap 'kill "$!"; echo >` + undone + `; exit' TERM
echo "an alarm of the start"
echo ready
until [ -e ` + more + ` ]; do sleep 0.05; done
echo "an alarm"
sleep 600 >/dev/null &
wait
`
	if err := os.WriteFile(program, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	p, err := startPeer("p", program, os.Environ())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.stop)
	select {
	case <-p.ready:
	case <-time.After(time.Minute):
		t.Fatal("it is not ready")
	}
	x := &examBench{peers: []*peer{p}}
	heard := x.heard()
	if err := os.WriteFile(more, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var said map[string][]string
	for end := time.Now().Add(time.Minute); len(said["p"]) == 0 && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if said, err = x.since(heard); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(said["p"], []string{"an alarm"}) {
		t.Errorf("said %q", said)
	}
	if err := x.close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(undone); err != nil {
		t.Error(err)
	}
	if _, err := x.since(heard); err == nil {
		t.Error("a peer that has ended has no alarm, and no error")
	}
}
