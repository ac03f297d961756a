package cli_test

import (
	"bytes"
	"io"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/control/api/apitest"
	"holdfast/internal/control/cli"
)

// A command finds the agent by the configuration of the host, unless the variable or the flag
// names another socket.
func TestSocketOfTheConfiguration(t *testing.T) {
	socket, none := filepath.Join(t.TempDir(), "agent.sock"), filepath.Join(t.TempDir(), "none")
	if err := startAgent(&apitest.Backend{}, socket, t.Cleanup); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOLDFAST_URL", "")
	deps := testDeps()
	deps.HostSocket = func() string { return socket }
	for _, c := range []struct {
		variable string
		args     []string
		code     int
	}{
		{"", []string{"session", "ls"}, 0},
		{none, []string{"session", "ls"}, 3},
		{"", []string{"session", "ls", "--socket", none}, 3},
		{none, []string{"session", "ls", "--socket", socket}, 0},
	} {
		t.Setenv("HOLDFAST_SOCKET", c.variable)
		var errs bytes.Buffer
		if code := cli.Main(t.Context(), c.args, nil, io.Discard, &errs, deps); code != c.code {
			t.Errorf("%q with the variable %q: exit code %d, want %d: %s", c.args, c.variable, code, c.code, &errs)
		}
	}
}

// A drain has the agent's budget unless one is given.
func TestDrainsWithTheAgentsBudget(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	b := &apitest.Backend{}
	if err := startAgent(b, socket, t.Cleanup); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOLDFAST_URL", "")
	t.Setenv("HOLDFAST_SOCKET", socket)
	for _, args := range [][]string{{"drain"}, {"node", "drain"}, {"drain", "--budget", "10s"}} {
		var errs bytes.Buffer
		if code := cli.Main(t.Context(), args, nil, io.Discard, &errs, testDeps()); code != 0 {
			t.Errorf("%q: exit code %d: %s", args, code, &errs)
		}
	}
	var budgets []holdfast.Millis
	for _, q := range b.Drains() {
		budgets = append(budgets, q.Budget)
	}
	if want := []holdfast.Millis{0, 0, holdfast.Millis(10 * time.Second)}; !slices.Equal(budgets, want) {
		t.Errorf("budgets %v, want %v", budgets, want)
	}
}
