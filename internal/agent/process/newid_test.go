package process

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast"
	"holdfast/internal/control/config"
)

func TestNewID(t *testing.T) {
	dir := t.TempDir()
	c := config.Config{Node: "n1", DataDir: dir, RunDir: dir}
	here, err := Host(dir)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(what, hint string) {
		t.Helper()
		if _, _, err := NewID(c); err == nil || !strings.Contains(err.Error(), what) || !strings.Contains(holdfast.HintOf(err), hint) {
			t.Errorf("%v (%s), not %q (%q)", err, holdfast.HintOf(err), what, hint)
		}
		if text, err := os.ReadFile(filepath.Join(dir, idName)); err != nil || string(text) != "n1\n" {
			t.Errorf("the id is %q, %v", text, err)
		}
	}
	held, _, err := prepare(t, "n1", dir, dir)
	if err != nil {
		t.Fatal(err)
	}
	write("lease", `{"id":1,"host":"another"}`)
	write("cordoned", "")
	if err := os.WriteFile(StoreFile(c), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refused("locking", "agent stop")
	held.Close()
	refused("still be node n1", "node:")
	c.Node = "n2"
	write("lease", `{"id":1,"host":"`+here+`"}`)
	refused("not a copy", "agent stop")
	write("lease", `{"id":1}`)
	for _, before := range []holdfast.NodeID{"n1", ""} { // it may be called again
		if got, now, err := NewID(c); err != nil || got != before || now != "n2" {
			t.Errorf("%q became %q: %v", got, now, err)
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 || left[0].Name() != "cordoned" || left[1].Name() != lockName {
		t.Errorf("left %v, %v", left, err)
	}
	held, node, err := prepare(t, "n2", dir, dir)
	if err != nil || node != "n2" {
		t.Fatalf("the next agent is node %q: %v", node, err)
	}
	held.Close()
}
