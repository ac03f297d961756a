package schedule

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"holdfast"
	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/cure"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/hosts/doctor/rule"
	"holdfast/internal/hosts/doctor/watch"
)

// host is a host whose figures and findings a test sets, with a clock of its own.
type host struct {
	now      time.Time
	facts    map[string]float64
	findings []string
	runs     []cure.Options
	report   cure.Report
	err      error
}

func (h *host) Summary() (map[string]float64, time.Time) { return h.facts, h.now }

func (h *host) Status() (s watch.Status) {
	for _, name := range h.findings {
		s.Findings = append(s.Findings, watch.Open{Finding: doctor.Finding{Finding: rule.Finding{Rule: name}}})
	}
	return s
}

func (h *host) run(_ context.Context, c cure.Cure, o cure.Options) (cure.Report, error) {
	h.runs = append(h.runs, o)
	r := h.report
	r.Cure, r.At, r.Applied = c.Name, h.now, o.Apply
	return r, h.err
}

// pass lets rounds of the doctor go by.
func (h *host) pass(t *testing.T, s *Schedule, n int) {
	for range n {
		h.now = h.now.Add(10 * time.Second)
		s.check(t.Context(), h.now)
	}
}

// noon is a moment in local time.
func noon() time.Time { return time.Date(2026, 3, 4, 12, 0, 0, 0, time.Local) }

func newHost() *host {
	return &host{now: noon(), facts: map[string]float64{fact.MemPSIFull: 0, fact.IOFull: 0.01, fact.MemcgDying: 5000}, findings: []string{"dying-cgroups"},
		report: cure.Report{Plan: cure.Plan{Bytes: 64 << 20, Does: []string{"reclaim"}}}}
}

// schedule returns a schedule of one entry in the directory, as an agent starts it.
func (h *host) schedule(t *testing.T, dir string, e Entry) *Schedule {
	t.Helper()
	if err := Validate([]Entry{e}); err != nil {
		t.Fatal(err)
	}
	s := New([]Entry{e}, Deps{DataDir: dir, Doctor: h, Run: h.run, Metrics: prometheus.NewRegistry(), Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err := s.load(); err != nil {
		t.Fatal(err)
	}
	return s
}

// state asserts the number of runs, and returns the entry's state.
func (h *host) state(t *testing.T, s *Schedule, runs int) State {
	t.Helper()
	st := s.States()[0]
	if len(h.runs) != runs {
		t.Fatalf("%d runs, want %d: %+v", len(h.runs), runs, st)
	}
	return st
}

func TestConfig(t *testing.T) {
	for text, bad := range map[string]Entry{
		"cures[0].cure: \"drop-caches\" cannot": {Cure: "drop-caches"},
		"when:":                                 {Cure: "memcg", When: "often"},
		"every:":                                {Cure: "memcg", Every: time.Minute},
		"window: \"2-5\"":                       {Cure: "memcg", Window: "2-5"},
		"begins when it ends":                   {Cure: "memcg", Window: "02:00-02:00"},
		"bytes:":                                {Cure: "memcg", Bytes: "much"},
		"for:":                                  {Cure: "memcg", For: time.Hour},
	} {
		if err := Validate([]Entry{bad}); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%+v: %v, want %s", bad, err, text)
		}
	}
	if err := Validate([]Entry{{Cure: "memcg"}, {Cure: "memcg", Every: 2 * time.Hour}}); err == nil {
		t.Error("one cure was scheduled twice")
	}
	known := make(map[string]bool)
	for _, r := range rule.All() {
		known[r.Name] = true
	}
	for _, k := range kinds() {
		for _, r := range k.rules {
			if !known[r] {
				t.Errorf("%s: there is no rule %s", k.name, r)
			}
		}
	}
}

func TestWindow(t *testing.T) {
	for text, want := range map[string]string{"02:00-05:00": "2 3 4", "22:00-01:00": "0 22 23", "": "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23"} {
		w, err := parseWindow(text)
		var in []string
		for hour := range 24 {
			if w.contains(time.Date(2026, 3, 4, hour, 30, 0, 0, time.Local)) {
				in = append(in, fmt.Sprint(hour))
			}
		}
		if got := strings.Join(in, " "); got != want || err != nil {
			t.Errorf("%q contains %s, %v; want %s", text, got, err, want)
		}
	}
}

// A cure runs when it is due, within its bounds, and not again before its next time. Its
// effect is in the record.
func TestRuns(t *testing.T) {
	h, dir := newHost(), t.TempDir()
	s := h.schedule(t, dir, Entry{Cure: "memcg", Bytes: "256MiB", For: 10 * time.Second})
	if h.pass(t, s, fewRounds-1); !strings.Contains(h.state(t, s, 0).Waiting, "too few figures") {
		t.Errorf("%+v", h.state(t, s, 0))
	}
	h.pass(t, s, 1)
	h.state(t, s, 1)
	if o := h.runs[0]; !o.Apply || !o.Scheduled || o.Bytes != 256<<20 || o.For != 10*time.Second {
		t.Errorf("%+v", o)
	}
	h.facts = map[string]float64{fact.MemPSIFull: 0.01, fact.IOFull: 0.02, fact.MemcgDying: 40}
	h.pass(t, s, 1)
	if st := h.state(t, s, 1); !strings.Contains(st.Waiting, "effect") {
		t.Errorf("%+v", st)
	}
	h.pass(t, s, keptRounds)
	list, err := s.journal.List(0)
	if err != nil || len(list) != 1 || len(list[0].Host) < 3 || list[0].Harm != "" {
		t.Fatalf("%+v, %v", list, err)
	}
	if f := list[0].Host[len(list[0].Host)-1]; f.What != "dying memory cgroups" || f.Before != 5000 || f.After != 40 {
		t.Errorf("%+v", list[0].Host)
	}
	if st := h.state(t, s, 1); st.Stopped != "" || st.Outcome != "done" || !strings.Contains(st.Waiting, "18:00") {
		t.Errorf("%+v", st)
	}
	// A new agent knows the last run.
	again := h.schedule(t, dir, Entry{Cure: "memcg", Bytes: "256MiB", For: 10 * time.Second})
	h.pass(t, again, fewRounds)
	h.state(t, again, 1)
	h.now = h.now.Add(6 * time.Hour)
	h.pass(t, again, fewRounds)
	h.state(t, again, 2)
}

// What keeps a cure from running.
func TestWaits(t *testing.T) {
	for want, change := range map[string]func(h *host, e *Entry){
		"no finding":                         func(h *host, _ *Entry) { h.findings = []string{"slow-disk"} },
		"outside its window":                 func(_ *host, e *Entry) { e.Window = "02:00-05:00" },
		"pressure: time stalled on memory":   func(h *host, _ *Entry) { h.facts[fact.MemPSIFull] = 0.03 },
		"pressure: time stalled on disks":    func(h *host, _ *Entry) { h.facts[fact.IOFull] = 0.5 },
		"pressure: allocations":              func(h *host, _ *Entry) { h.facts = map[string]float64{fact.AllocStalls: 90} }, // no PSI
		"pressure: busy time of the busiest": func(h *host, _ *Entry) { h.facts[fact.DiskBusy] = 1 },
		"":                                   func(h *host, e *Entry) { h.findings, e.When = nil, WhenAlways },
	} {
		h, e := newHost(), Entry{Cure: "memcg"}
		change(h, &e)
		s := h.schedule(t, t.TempDir(), e)
		h.pass(t, s, fewRounds)
		runs := 0
		if want == "" {
			runs = 1
		}
		if st := h.state(t, s, runs); !strings.Contains(st.Waiting, want) {
			t.Errorf("%q: %+v", want, st)
		}
	}
}

// A cure that does harm is not run again, also by a new agent, until an operator allows it
// or its configuration changes.
func TestHarmStops(t *testing.T) {
	e := Entry{Cure: "pinned"}
	for name, harm := range map[string]func(h *host, s *Schedule){
		"pages read again": func(h *host, s *Schedule) {
			h.pass(t, s, fewRounds)
			h.facts = map[string]float64{fact.GroupRefaults: 5000, fact.MemPSIFull: 0.01}
			h.pass(t, s, keptRounds)
		},
		"stalled on memory": func(h *host, s *Schedule) {
			h.pass(t, s, fewRounds)
			h.facts = map[string]float64{fact.MemPSIFull: 0.2}
			h.pass(t, s, keptRounds)
		},
		"began to stall": func(h *host, s *Schedule) {
			h.report.Stopped, h.report.Harm = "the processes in the group began to stall", "the processes in the group began to stall"
			h.pass(t, s, fewRounds)
			if st := h.state(t, s, 1); st.Stopped != "" || st.Outcome != "early" {
				t.Errorf("stopped at once: %+v", st)
			}
			h.pass(t, s, keptRounds)
			h.now, h.runs = h.now.Add(24*time.Hour), nil
			h.pass(t, s, keptRounds)
		},
		"agent died": func(h *host, s *Schedule) {
			s.deps.Run = func(context.Context, cure.Cure, cure.Options) (cure.Report, error) { panic("killed") }
			defer func() {
				_ = recover() // the state is on disk as a killed agent leaves it
				h.runs = append(h.runs, cure.Options{})
				old := s.States()[0]
				next := h.schedule(t, filepath.Dir(s.file), e)
				*s = Schedule{deps: next.deps, file: next.file, journal: next.journal, entries: next.entries, runs: next.runs}
				if old.Stopped != "" {
					t.Error("it was stopped before")
				}
			}()
			h.pass(t, s, fewRounds)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, dir := newHost(), t.TempDir()
			s := h.schedule(t, dir, e)
			harm(h, s)
			if st := h.state(t, s, 1); !strings.Contains(st.Stopped, name) || s.stopped() != 1 {
				t.Fatalf("%+v", st)
			}
			h.facts, h.report.Harm, h.report.Stopped = newHost().facts, "", ""
			h.now = h.now.Add(24 * time.Hour)
			s = h.schedule(t, dir, e)
			h.pass(t, s, fewRounds)
			if st := h.state(t, s, 1); st.Stopped == "" || st.StoppedAt.IsZero() {
				t.Fatalf("a new agent forgot it: %+v", st)
			}
			changed := h.schedule(t, t.TempDir(), Entry{Cure: "pinned", Bytes: "10MiB"})
			text, err := os.ReadFile(s.file)
			if err == nil {
				err = os.WriteFile(changed.file, text, 0o600)
			}
			if err := errors.Join(err, changed.load()); err != nil || changed.States()[0].Stopped != "" {
				t.Errorf("a changed configuration: %+v, %v", changed.States()[0], err)
			}
			if err := s.Allow("memcg"); !errors.Is(err, holdfast.ErrNotFound) {
				t.Errorf("allowed another: %v", err)
			}
			if err := s.Allow("pinned"); err != nil {
				t.Fatal(err)
			}
			h.pass(t, s, 1)
			h.state(t, s, 2)
		})
	}
}

// Outcomes without an effect to measure.
func TestOutcomes(t *testing.T) {
	for want, change := range map[string]func(h *host, e *Entry){
		"nothing": func(h *host, _ *Entry) { h.err = fmt.Errorf("cure: %w", cure.ErrNothing) },
		"failed":  func(h *host, _ *Entry) { h.err = errors.New("no guardian") },
		"dry-run": func(_ *host, e *Entry) { e.DryRun = true },
	} {
		h, e := newHost(), Entry{Cure: "memcg"}
		change(h, &e)
		s := h.schedule(t, t.TempDir(), e)
		h.pass(t, s, fewRounds+2)
		st := h.state(t, s, 1)
		if !strings.HasPrefix(st.Outcome, want) || testutil.ToFloat64(s.runs.WithLabelValues("memcg", want)) != 1 || e.DryRun != (len(st.WouldDo) > 0) || e.DryRun == h.runs[0].Apply {
			t.Errorf("%s: %+v", want, st)
		}
	}
	// Another cure in the way is no run.
	h := newHost()
	h.err = fmt.Errorf("cure: %w", holdfast.ErrBusy)
	s := h.schedule(t, t.TempDir(), Entry{Cure: "memcg"})
	h.pass(t, s, fewRounds+2)
	h.err = nil
	h.pass(t, s, 6)
	h.state(t, s, 2)
}

// Several cures of one entry share its bounds.
func TestBoundsTogether(t *testing.T) {
	h := newHost()
	h.report.Plan.Bytes = 200 << 20
	var asked []int64
	e := Entry{Cure: "memcg", Bytes: "256MiB"}.filled()
	k := e.kind()
	many, err := k.cures(probe.Host{})
	reports, err2 := e.runAll(append(append(many, many...), many...), func(c cure.Cure, o cure.Options) (cure.Report, error) {
		asked = append(asked, o.Bytes)
		return h.run(t.Context(), c, o)
	})
	if err := errors.Join(err, err2); err != nil || len(reports) != 2 || asked[0] != 256<<20 || asked[1] != 56<<20 {
		t.Errorf("%v, %v, %+v", asked, err, reports)
	}
}
