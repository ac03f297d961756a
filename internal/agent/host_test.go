package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast"
	"holdfast/internal/control/config"
)

func hostAgent(t *testing.T, node, data, run string) *Agent {
	t.Helper()
	return newAgent(config.Config{Node: node, DataDir: data, RunDir: run}, Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil))}, nil, nil)
}

func TestDirectoriesAreOneAgentsEach(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	first, err := hostAgent(t, "n1", at("data1"), at("run")).prepareHost()
	if err != nil {
		t.Fatal(err)
	}
	for what, a := range map[string]*Agent{
		"data_dir": hostAgent(t, "n1", at("data1"), at("run2")),
		"run_dir":  hostAgent(t, "n2", at("data2"), at("run")),
	} {
		if _, err := a.prepareHost(); err == nil || !strings.Contains(err.Error(), what) || !strings.Contains(holdfast.HintOf(err), "another agent") {
			t.Errorf("the same %s: %v (%s)", what, err, holdfast.HintOf(err))
		}
	}
	first.Close()
	// What was refused locks nothing, and one directory may be both.
	for _, run := range []string{"run", "data2"} {
		l, err := hostAgent(t, "n2", at("data2"), at(run)).prepareHost()
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
		a := hostAgent(t, node, dir, dir)
		if err := a.settleID(); err != nil {
			t.Fatal(err)
		}
		return a.node
	}
	for _, empty := range []string{"", "\n"} { // as a power cut may leave it
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
