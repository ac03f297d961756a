package reload

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	bench "holdfast/bench/reload"
	"holdfast/test/lab/labtest"
	"holdfast/test/vm/vmtest"
)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "reload-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	holdfast = filepath.Join(dir, "holdfast")
	vmtest.Fetch()
	code := labtest.Main(m)
	os.RemoveAll(dir)
	os.Exit(code)
}

// holdfast is the program. The first test that needs it builds it.
var holdfast string

// program builds holdfast as it is released.
func program(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: HAProxy, nginx and holding take root")
	}
	if _, err := os.Stat(holdfast); err == nil {
		return holdfast
	}
	if err := labtest.Build(t.Context(), "holdfast/cmd/holdfast", holdfast); err != nil {
		t.Fatal(err)
	}
	return holdfast
}

// total returns the figures of the history of holds, for all backends.
func total(t *testing.T) (holds, connections int) {
	t.Helper()
	out, err := exec.Command(program(t), "protect", "history", "--json", "--limit", "1").Output()
	if err != nil {
		t.Fatal(err)
	}
	var h struct {
		Totals map[string]struct{ Holds, Connections int }
	}
	if err := json.Unmarshal(out, &h); err != nil {
		t.Fatal(err)
	}
	for _, of := range h.Totals {
		holds, connections = holds+of.Holds, connections+of.Connections
	}
	return holds, connections
}

func measure(t *testing.T, o bench.Options) []*bench.Run {
	t.Helper()
	return details(t, o).(bench.Details).Runs
}

func details(t *testing.T, o bench.Options) any {
	t.Helper()
	o.Protect, o.Progress = []string{program(t), "protect"}, t.Output()
	res, err := bench.Measure(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := res.WriteText(t.Output()); err != nil {
		t.Error(err)
	}
	return res.Details
}

// No client fails while HAProxy is reloaded, or killed and started.
func TestNoClientFails(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.html")
	requests := 1000
	holds, connections := total(t)
	if labtest.Long() {
		requests = 20_000
	}
	runs := measure(t, bench.Options{
		Requests: requests, Rate: 300, Modes: []bench.Mode{bench.NFQueue, bench.Park}, Page: page,
		Drain: 20 * time.Second, // on a busy machine an answer may be late
	})
	if len(runs) != 4 {
		t.Fatalf("%d runs", len(runs))
	}
	changes := 0
	for _, r := range runs {
		changes += r.Changes
		if r.Skipped != "" || r.Failed != 0 || r.Requests < requests || r.Changes < 2 || r.Unfinished > 0 {
			t.Errorf("%s: %d requests, %d failed: %v; %d reloads, %d requests unfinished %s", r.Name(), r.Requests, r.Failed, r.Reasons, r.Changes, r.Unfinished, r.Skipped)
		}
	}
	h, c := total(t) // including those of other tests on this host
	if h-holds < changes || c == connections {
		t.Errorf("%d restarts, and %d more holds of %d more connections in the history", changes, h-holds, c-connections)
	}
	if fi, err := os.Stat(page); err != nil || fi.Size() == 0 {
		t.Errorf("no page: %v", err)
	}
}

// Without protection the same clients fail.
func TestClientsFailWithoutProtection(t *testing.T) {
	for _, r := range measure(t, bench.Options{Requests: 1000, Rate: 300, Modes: []bench.Mode{bench.Nothing}}) {
		if r.Change == bench.Restart && r.Failed == 0 {
			t.Errorf("%s: no request failed of %d in %d restarts", r.Name(), r.Requests, r.Changes)
		}
	}
}

// The experiment without reloads in small: no client fails while a port is installed and removed
// under load.
func TestInstalledPort(t *testing.T) {
	labtest.NeedLong(t, "TestNoClientFails installs the same ports under load, and restarts the server too")
	d := details(t, bench.Options{Idle: true, Pairs: 1, Modes: []bench.Mode{bench.NFQueue, bench.Park}}).(bench.IdleDetails)
	if len(d.Runs) != 2 {
		t.Fatalf("%d runs", len(d.Runs))
	}
	for _, r := range d.Runs {
		if r.Skipped != "" || r.Failed != 0 || len(r.Pairs) != 1 || r.Ratio <= 0 || r.Installed <= 0 {
			t.Errorf("%+v", r)
		}
	}
}

// The experiment with kills in small: every process is killed once, and all clients are served.
func TestKills(t *testing.T) {
	d := details(t, bench.Options{WithKills: true, Kills: 1, Rate: 100, Drain: 20 * time.Second, Modes: []bench.Mode{bench.NFQueue, bench.Park}}).(bench.KillDetails)
	if len(d.Runs) != 2*7 {
		t.Fatalf("%d runs", len(d.Runs))
	}
	for _, r := range d.Runs {
		killed := r.Kills
		if r.Victim == bench.KillNone {
			killed = 1
			if r.Refused > 0 {
				t.Errorf("%s: no process was killed, and %d of %d failed", r.Mode, r.Refused, r.Requests)
			}
		}
		if r.Skipped != "" || killed+r.Missed != 1 || r.Refused >= r.Requests {
			t.Errorf("%+v", r)
		}
	}
}
