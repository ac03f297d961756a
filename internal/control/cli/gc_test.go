package cli_test

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/internal/control/api"
	"holdfast/internal/control/cli"
	"holdfast/internal/hosts/gc"
)

// alone is the collector of a host without an agent. It counts the calls.
type alone struct {
	api.Collector
	plans, runs int
}

func (a *alone) Plan(context.Context) (gc.Proposal, error) {
	a.plans++
	return gc.Proposal{}, nil
}

func (a *alone) Collect(context.Context, gc.Trigger, func(gc.Outcome, bool)) (gc.Cycle, error) {
	a.runs++
	return gc.Cycle{Begun: time.Now()}, nil
}

// TestNothingIsDeletedWithoutANamedConfiguration: an agent that does not answer
// may keep more images than the default configuration.
func TestNothingIsDeletedWithoutANamedConfiguration(t *testing.T) {
	t.Setenv("HOLDFAST_URL", "")
	t.Setenv("HOLDFAST_SOCKET", filepath.Join(t.TempDir(), "none"))
	host := &alone{}
	deps := testDeps()
	deps.GC.Open = func(context.Context, string) (api.Collector, func() error, error) {
		return host, func() error { return nil }, nil
	}
	run := func(args ...string) (int, string) {
		var out, errs bytes.Buffer
		return cli.Main(t.Context(), args, nil, &out, &errs, deps), errs.String()
	}
	if code, said := run("gc", "run"); code == 0 || host.runs != 0 || !strings.Contains(said, "--config") {
		t.Errorf("run: %d, %q, %d runs", code, said, host.runs)
	}
	if code, said := run("gc", "run", "--dry-run"); code != 0 || host.plans != 1 {
		t.Errorf("dry run: %d, %q, %d plans", code, said, host.plans)
	}
	if code, said := run("gc", "run", "--config", "/some/file.yaml"); code != 0 || host.runs != 1 {
		t.Errorf("with a configuration: %d, %q, %d runs", code, said, host.runs)
	}
}
