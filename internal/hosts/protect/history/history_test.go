package history_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"holdfast"
	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/history"
)

func hold(backend protect.Name, held int, longest time.Duration, reason protect.Reason) history.Hold {
	return history.Hold{At: time.Now().UTC(), Ports: []uint16{80}, Program: "true", Backend: backend, Held: held, Longest: longest, Reason: reason}
}

func add(t *testing.T, dir string, h history.Hold) {
	t.Helper()
	if err := history.Add(dir, h); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, dir string) history.History {
	t.Helper()
	h, err := history.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// The record of a report has no arguments of the command: they may be secret.
func TestHoldOf(t *testing.T) {
	o := protect.Options{Spec: protect.Spec{Addresses: []protect.Address{{Port: 443}, {Port: 80}}}, Command: []string{"/bin/restart", "--password=x"}}
	r := protect.Report{Backend: protect.Park, ExitCode: 3, Drained: protect.Drained{Left: 2}, Released: protect.Released{
		Reason: protect.TimeUp, Held: time.Second, Stats: protect.Stats{Held: 7, Longest: time.Minute},
	}}
	h := history.HoldOf(o, r)
	if h.Program != "restart" || len(h.Ports) != 2 || h.Ports[0] != 80 || h.Backend != protect.Park || h.ExitCode != 3 ||
		h.Unanswered != 2 || h.Held != 7 || h.Longest != time.Minute || h.Took != time.Second || h.Reason != protect.TimeUp {
		t.Errorf("%+v", h)
	}
}

// The totals count all holds, including those that are no longer kept.
func TestTotals(t *testing.T) {
	dir := t.TempDir()
	for range history.Keep {
		add(t, dir, hold(protect.Park, 1, time.Millisecond, protect.NewListens))
	}
	add(t, dir, hold(protect.Park, 5, time.Second, protect.TimeUp))
	add(t, dir, hold(protect.NFQueue, 2, time.Minute, protect.NewListens))
	h := read(t, dir)
	if len(h.Holds) != history.Keep || h.Holds[history.Keep-1].Backend != protect.NFQueue {
		t.Errorf("%d holds are kept", len(h.Holds))
	}
	if want := (history.Total{Holds: history.Keep + 1, Connections: history.Keep + 5, Failed: 1, Longest: time.Second}); h.Totals[protect.Park] != want {
		t.Errorf("%+v, and not %+v", h.Totals[protect.Park], want)
	}
	err := testutil.CollectAndCompare(history.NewMetrics(dir, slog.New(slog.DiscardHandler)), strings.NewReader(`
# HELP holdfast_protect_connections_total Connections that waited, since the host's boot, by backend.
# TYPE holdfast_protect_connections_total counter
holdfast_protect_connections_total{backend="migrate"} 0
holdfast_protect_connections_total{backend="nfqueue"} 2
holdfast_protect_connections_total{backend="park"} 205
holdfast_protect_connections_total{backend="plug"} 0
# HELP holdfast_protect_failed_holds_total Holds that ended without a server that listens and is ready, since the host's boot, by backend.
# TYPE holdfast_protect_failed_holds_total counter
holdfast_protect_failed_holds_total{backend="migrate"} 0
holdfast_protect_failed_holds_total{backend="nfqueue"} 0
holdfast_protect_failed_holds_total{backend="park"} 1
holdfast_protect_failed_holds_total{backend="plug"} 0
# HELP holdfast_protect_holds_total Restarts during which connections were held, since the host's boot, by backend.
# TYPE holdfast_protect_holds_total counter
holdfast_protect_holds_total{backend="migrate"} 0
holdfast_protect_holds_total{backend="nfqueue"} 1
holdfast_protect_holds_total{backend="park"} 201
holdfast_protect_holds_total{backend="plug"} 0
# HELP holdfast_protect_longest_wait_seconds Longest wait of a connection in seconds, since the host's boot, by backend.
# TYPE holdfast_protect_longest_wait_seconds gauge
holdfast_protect_longest_wait_seconds{backend="migrate"} 0
holdfast_protect_longest_wait_seconds{backend="nfqueue"} 60
holdfast_protect_longest_wait_seconds{backend="park"} 1
holdfast_protect_longest_wait_seconds{backend="plug"} 0
`))
	if err != nil {
		t.Error(err)
	}
}

// A hold succeeds, too, if the server keeps its sockets (nginx -s reload), or if the
// protect itself sees that the server in a container listens.
func TestNoFailure(t *testing.T) {
	for reason, failed := range map[protect.Reason]int{
		protect.NewListens: 0, protect.OldStayed: 0, protect.AskedFor: 0,
		protect.TimeUp: 1, protect.CommandKill: 1, protect.StarterGone: 1,
	} {
		dir := t.TempDir()
		add(t, dir, hold(protect.Park, 1, 0, reason))
		if got := read(t, dir).Totals[protect.Park].Failed; got != failed {
			t.Errorf("%s: failed %d, want %d", reason, got, failed)
		}
	}
}

// No hold is lost when many processes add at the same time.
func TestAddTogether(t *testing.T) {
	dir := t.TempDir()
	var adding sync.WaitGroup
	for range 8 {
		adding.Go(func() {
			for range 10 {
				if err := history.Add(dir, hold(protect.Park, 1, 0, protect.NewListens)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	adding.Wait()
	if h := read(t, dir); h.Totals[protect.Park].Holds != 80 || len(h.Holds) != 80 {
		t.Errorf("%+v, %d holds", h.Totals, len(h.Holds))
	}
}

// An unreadable file is an error with a hint, and the next hold replaces the file.
func TestTorn(t *testing.T) {
	dir := t.TempDir()
	add(t, dir, hold(protect.Park, 1, 0, protect.NewListens))
	file := filepath.Join(dir, "history.json")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"cut off": b[:len(b)/2], "of another version": []byte(`{"version": 9}`), "empty": nil} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := history.Read(dir); err == nil || !strings.Contains(holdfast.HintOf(err), file) {
			t.Errorf("%s: %v", name, err)
		}
		if err := history.Add(dir, hold(protect.Park, 1, 0, protect.NewListens)); err == nil {
			t.Errorf("%s: no error", name)
		}
		if h := read(t, dir); h.Totals[protect.Park].Holds != 1 {
			t.Errorf("%s: %+v", name, h)
		}
	}
}
