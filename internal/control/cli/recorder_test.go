package cli

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/apitest"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/underway"
	"holdfast/internal/platform/linux/boottime"
	"holdfast/test/poll"
)

// desk is a command with a Recorder, and its output.
type desk struct {
	*Recorder
	dir, socket string
	said        bytes.Buffer
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	dir := t.TempDir()
	d := &desk{dir: filepath.Join(dir, "data"), socket: filepath.Join(dir, "sock")}
	a := &app{ui: newUI(nil, &d.said, &d.said), socket: d.socket, deps: Deps{
		Host: func(context.Context) (Host, error) {
			return Host{DataDir: d.dir, RunDir: filepath.Join(d.dir, "run"), Spinup: spinup.DefaultConfig()}, nil
		},
	}}
	r, err := a.recorder()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	d.Recorder = r
	return d
}

// agent serves b on the desk's socket until the test ends.
func (d *desk) agent(t *testing.T, b interface{ Parts() api.Parts }) {
	t.Helper()
	l, err := net.Listen("unix", d.socket)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- api.Serve(ctx, l, api.New(b.Parts(), api.Options{Admin: true, Log: log}), log) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// leases returns the announcements on the desk's host.
func (d *desk) leases(t *testing.T) (*underway.Leases, *underway.List) {
	t.Helper()
	leases, err := underway.OpenLeases(filepath.Join(d.dir, "run", underway.DirName), boottime.Now)
	if err != nil {
		t.Fatal(err)
	}
	list := underway.New(boottime.Now)
	list.Include(leases)
	return leases, list
}

// Without an agent the announcement is a file for the collector on this host, if there
// is one.
func TestRecorderAnnouncesToACollector(t *testing.T) {
	d := newDesk(t)
	leases, list := d.leases(t)
	end := d.Begin(t.Context(), spinup.ForPull, "app:1") // without a reader
	end()
	if _, err := os.Stat(filepath.Join(d.dir, "run")); err == nil {
		t.Error("the announcement created a directory, though no collector reads it")
	}
	if err := leases.Make(); err != nil {
		t.Fatal(err)
	}
	end = d.Begin(t.Context(), spinup.ForPull, "app:1")
	poll.Until(t, "it is noted", func() bool {
		got := list.Active()
		return len(got) == 1 && got[0].Kind == "pull" && got[0].Name == "app:1"
	})
	end()
	if got := list.Active(); len(got) != 0 {
		t.Errorf("it is still under way: %+v", got)
	}
}

// kept returns the records on disk.
func (d *desk) kept(t *testing.T) []spinup.Record {
	t.Helper()
	s, err := spinup.OpenStore(filepath.Join(d.dir, spinup.FileName), spinup.DefaultKeep(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	all, err := s.List(spinup.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func done(image string) spinup.Record {
	return spinup.NewTimer(spinup.ForRun, image, spinup.Cohort{}).End(nil)
}

func TestRecorderAnnouncesToTheAgent(t *testing.T) {
	d, b := newDesk(t), &apitest.Backend{}
	d.agent(t, b)
	ctx, cancel := context.WithCancel(t.Context())
	end := d.Begin(ctx, spinup.ForRun, strings.Repeat("n", 1000))
	poll.Until(t, "the agent knows", func() bool { got := b.Parts().UnderWay.Active(); return len(got) == 1 && got[0].Kind == "run" })
	cancel() // Ctrl-C: the record is kept
	end()
	if got := b.Parts().UnderWay.Active(); len(got) != 0 {
		t.Errorf("it is still under way: %+v", got)
	}
	one, two := done("a"), done("b")
	if err := d.Record(ctx, one, two); err != nil {
		t.Error(err)
	}
	got, err := b.Parts().Spinups.List(spinup.Filter{})
	if err != nil || len(got) != 2 || got[0].ID == got[1].ID {
		t.Errorf("%+v, %v", got, err)
	}
	for _, r := range got {
		if r.ID != one.ID && r.ID != two.ID {
			t.Errorf("it has %+v", r)
		}
	}
	if _, err := os.Stat(d.dir); err == nil {
		t.Error("there are records on disk, too")
	}
	if d.said.Len() > 0 {
		t.Errorf("it said %q", &d.said)
	}
}

func TestRecorderWritesToDiskWithoutAnAgent(t *testing.T) {
	d := newDesk(t)
	d.Begin(t.Context(), spinup.ForPull, "x")()
	one := done("a")
	for _, r := range []spinup.Record{one, done("b")} {
		if err := d.Record(t.Context(), r); err != nil {
			t.Error(err)
		}
	}
	if got := d.kept(t); len(got) != 2 || got[1].ID != one.ID {
		t.Errorf("%+v", got)
	}
	if d.said.Len() > 0 {
		t.Errorf("it said %q", &d.said)
	}
}

// A starting agent has the store open, and does not answer yet.
func TestRecorderWaitsForTheStore(t *testing.T) {
	d, b := newDesk(t), &apitest.Backend{}
	s, err := spinup.OpenStore(filepath.Join(d.dir, spinup.FileName), spinup.DefaultKeep(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	recorded := make(chan error, 1)
	go func() { recorded <- d.Record(context.Background(), done("a")) }()
	time.Sleep(50 * time.Millisecond) // it most likely waits now; if not, the test is easier
	d.agent(t, b)
	if err := <-recorded; err != nil {
		t.Error(err)
	}
	if got, err := b.Parts().Spinups.List(spinup.Filter{}); err != nil || len(got) != 1 {
		t.Errorf("%+v, %v; it said %q", got, err, &d.said)
	}
}

// An agent answers before it has opened its store.
func TestRecorderWaitsForAnAgentThatIsNotReady(t *testing.T) {
	d, b := newDesk(t), &apitest.Backend{}
	b.SetFault(holdfast.ErrBusy)
	d.agent(t, b)
	recorded := make(chan error, 1)
	go func() { recorded <- d.Record(context.Background(), done("a"), done("b")) }()
	time.Sleep(50 * time.Millisecond) // it most likely waits now; if not, the test is easier
	b.SetFault(nil)
	if err := <-recorded; err != nil {
		t.Error(err)
	}
	if got, err := b.Parts().Spinups.List(spinup.Filter{}); err != nil || len(got) != 2 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestRecorderReportsLostRecords(t *testing.T) {
	for name, prepare := range map[string]func(*testing.T, *desk){
		"a file in the way": func(t *testing.T, d *desk) {
			if err := os.WriteFile(d.dir, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"an agent that will not": func(t *testing.T, d *desk) {
			b := &apitest.Backend{}
			b.SetFault(os.ErrInvalid)
			d.agent(t, b)
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t)
			prepare(t, d)
			d.Begin(t.Context(), spinup.ForPull, "x")()
			if err := d.Record(t.Context(), done("a"), done("b")); err == nil || !strings.HasPrefix(err.Error(), "recording the spin-up of a: ") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestParseMoment(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.Local)
	for text, want := range map[string]time.Time{
		"24h": now.Add(-24 * time.Hour), "90s": now.Add(-90 * time.Second), "7d": now.AddDate(0, 0, -7), "0s": now,
		"2026-11-01": time.Date(2026, 11, 1, 0, 0, 0, 0, time.Local), "2026-11-01T12:30": time.Date(2026, 11, 1, 12, 30, 0, 0, time.Local),
		"2026-11-01 12:30": time.Date(2026, 11, 1, 12, 30, 0, 0, time.Local), "2026-11-01T12:30:05Z": time.Date(2026, 11, 1, 12, 30, 5, 0, time.UTC),
	} {
		if got, err := parseMoment(now, text); err != nil || !got.Equal(want) {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "yesterday", "-5m", "d", "-1d", "99999999d", "2026-13-01", "now"} {
		if got, err := parseMoment(now, text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}
