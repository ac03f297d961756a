package process

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast"
	"holdfast/internal/control/config"
)

func prepare(t *testing.T, node, data, run string) (Locks, holdfast.NodeID, error) {
	t.Helper()
	return Prepare(config.Config{Node: node, DataDir: data, RunDir: run}, slog.New(slog.NewTextHandler(t.Output(), nil)))
}

func TestDirectoriesHaveOneAgentEach(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	first, _, err := prepare(t, "n1", at("data1"), at("run"))
	if err != nil {
		t.Fatal(err)
	}
	for what, dirs := range map[string][3]string{"data_dir": {"n1", "data1", "run2"}, "run_dir": {"n2", "data2", "run"}} {
		if _, _, err := prepare(t, dirs[0], at(dirs[1]), at(dirs[2])); err == nil || !strings.Contains(err.Error(), what) || !strings.Contains(holdfast.HintOf(err), "another agent") {
			t.Errorf("the same %s: %v (%s)", what, err, holdfast.HintOf(err))
		}
	}
	first.Close()
	// A refused agent leaves no locks, and the two directories may be one.
	for _, run := range []string{"run", "data2"} {
		l, _, err := prepare(t, "n2", at("data2"), at(run))
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
}

func TestNodeIDIsKept(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "node")
	settle := func(node string) holdfast.NodeID {
		t.Helper()
		l, id, err := prepare(t, node, dir, dir)
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		return id
	}
	for _, empty := range []string{"", "\n"} { // as a power failure may leave the file
		if err := os.WriteFile(file, []byte(empty), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := settle("n1"); got != "n1" {
			t.Errorf("the id is %q after a file of %q", got, empty)
		}
		if got := settle("renamed"); got != "n1" {
			t.Errorf("the id became %q with the host's name", got)
		}
		if left, err := filepath.Glob(filepath.Join(dir, ".node-*")); err != nil || len(left) > 0 {
			t.Errorf("left %v, %v", left, err)
		}
	}
}
