package watch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.uber.org/goleak"

	"holdfast"
	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/drill"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/hosts/doctor/rule"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
	"holdfast/test/poll"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		if role, ok := map[string]func([]string) error{
			probe.RoleAlloc: func(args []string) error { return probe.Alloc(args, os.Stdout) },
			drill.Role:      func(args []string) error { return drill.Work(context.Background(), args) },
		}[os.Args[1]]; ok {
			code := 0
			if err := role(os.Args[2:]); err != nil {
				fmt.Fprintln(os.Stderr, "error:", err)
				code = 1
			}
			syscall.Exit(code) // os.Exit takes a second under -race
		}
	}
	goleak.VerifyTestMain(m)
}

// fakeHost is a host with one file, which a test writes.
type fakeHost struct {
	t    *testing.T
	root string
}

func newMadeUp(t *testing.T) fakeHost {
	t.Helper()
	m := fakeHost{t, t.TempDir()}
	m.dying(10)
	return m
}

func (m fakeHost) dying(n int) {
	m.t.Helper()
	if err := os.WriteFile(filepath.Join(m.root, "dying"), []byte(fmt.Sprint(n)), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

func (m fakeHost) read() ([]fact.Fact, error) {
	text, err := os.ReadFile(filepath.Join(m.root, "dying"))
	if err != nil {
		return nil, err
	}
	var n float64
	_, err = fmt.Sscan(string(text), &n)
	return []fact.Fact{
		{Name: fact.MemcgDying, Value: n}, {Name: fact.MemcgLiving, Value: 100}, {Name: fact.MemTotal, Value: 64 << 30, Unit: fact.Bytes},
		{Name: fact.GroupUsage, Value: 5, Unit: fact.Bytes, Subject: fact.Subject{Cgroup: "/docker/a"}},
	}, err
}

func (m fakeHost) Read(context.Context, time.Time) ([]fact.Fact, error) { return m.read() }
func (m fakeHost) Close() error                                         { return nil }

func (m fakeHost) standing() []probe.Probe {
	return []probe.Probe{{
		Name: "made up", Sees: "what the test writes", Gives: []string{fact.MemcgDying},
		Open: func(context.Context, probe.Host, time.Time) (probe.Series, error) { return m, nil },
	}, {
		Name: "blind", Sees: "nothing", Gives: []string{fact.Drains},
		Open: func(context.Context, probe.Host, time.Time) (probe.Series, error) {
			return nil, errors.New("it has no eyes")
		},
	}}
}

// deep is a probe of a burst that finds lock contention, which no round observes.
func deep(rtnl *atomic.Int64) []probe.Probe {
	return []probe.Probe{{
		Name: "deep", Sees: "locks", Gives: []string{fact.LockSeen, fact.RtnlWait},
		Open: func(context.Context, probe.Host, time.Time) (probe.Series, error) { return lockWaits{rtnl}, nil },
	}}
}

type lockWaits struct{ rtnl *atomic.Int64 }

func (l lockWaits) Read(context.Context, time.Time) ([]fact.Fact, error) {
	return []fact.Fact{{Name: fact.LockSeen, Value: 1}, {Name: fact.RtnlWait, Value: float64(l.rtnl.Load()), Unit: fact.Share}}, nil
}

func (lockWaits) Close() error { return nil }

// In a bubble of fake time, a host becomes sick and recovers. The status, the metrics,
// the log, the events and the history show it.
func TestFindingBeginsAndEnds(t *testing.T) {
	host, dir := newMadeUp(t), t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var mu sync.Mutex
		var changed []int
		reg := prometheus.NewRegistry()
		c := DefaultConfig()
		c.Burst = 0
		w := New(c, Deps{
			Standing: host.standing(), Store: NewStore(dir, c.Keep, quiet()), Metrics: NewMetrics(reg), Log: slog.New(slog.NewTextHandler(&log, nil)),
			Changed: func(o []Open) { mu.Lock(); defer mu.Unlock(); changed = append(changed, len(o)) },
		})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := w.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		events, err := w.Events(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		running.Go(func() {
			for e := range events {
				mu.Lock()
				got = append(got, string(e.Kind))
				mu.Unlock()
			}
		})
		rounds := func(n int) { time.Sleep(time.Duration(n) * c.Every); synctest.Wait() }
		time.Sleep(time.Second) // to be between two rounds
		rounds(3)
		if s := w.Status(); len(s.Findings) != 0 || s.Cost.Rounds != 3 || len(s.Gaps) != 1 || s.Gaps[0].Why != "it has no eyes" {
			t.Errorf("a healthy host: %+v", s)
		}
		host.dying(5000)
		rounds(1)
		if n := len(w.Status().Findings); n != 0 {
			t.Errorf("%d findings after one round", n)
		}
		rounds(1)
		s := w.Status()
		if len(s.Findings) != 1 || s.Findings[0].Rule != "dying-cgroups" || len(s.Findings[0].Cures) == 0 {
			t.Fatalf("%+v", s.Findings)
		}
		for _, f := range s.Facts {
			if f.Subject.Cgroup != "" {
				t.Errorf("the status has a fact about a group: %+v", f)
			}
		}
		for _, x := range s.Checked {
			if x.Rule == "fadvise-storm" && (x.Verdict != doctor.NotJudged || !strings.Contains(x.Why, "no eyes")) {
				t.Errorf("%+v", x)
			}
		}
		text := exposed(t, reg)
		for _, want := range []string{
			`holdfast_doctor_findings{rule="dying-cgroups",severity="warning"} 1`, `holdfast_doctor_fact_number{fact="memcg_dying"} 5000`,
			`holdfast_doctor_finding_events_total{event="began",rule="dying-cgroups"} 1`,
		} {
			if !strings.Contains(text, want) {
				t.Errorf("%s is missing from\n%s", want, text)
			}
		}
		host.dying(10)
		rounds(3)
		if n := len(w.Status().Findings); n != 0 {
			t.Errorf("%d findings are still open", n)
		}
		if text := exposed(t, reg); !strings.Contains(text, `holdfast_doctor_findings{rule="dying-cgroups",severity="warning"} 0`) {
			t.Error("the metric still shows the finding")
		}
		cancel()
		running.Wait()
		if !slices.Equal(got, []string{"began", "ended"}) {
			t.Errorf("events %q", got)
		}
		if slices.Max(changed) != 1 || changed[len(changed)-1] != 0 {
			t.Errorf("Changed was called with %v findings", changed)
		}
		if !strings.Contains(log.String(), "dying-cgroups") || !strings.Contains(log.String(), "over") {
			t.Errorf("unexpected log:\n%s", &log)
		}
		h, err := w.History(time.Time{}, 0)
		if err != nil || len(h.Events) != 2 || h.Events[0].Kind != Ended || len(h.Samples) < 1 {
			t.Fatalf("%+v, %v", h, err)
		}
		most := 0.0
		for _, one := range h.Samples {
			most = max(most, one.Facts[fact.MemcgDying].Max)
		}
		if most != 5000 {
			t.Errorf("the history has at most %v dying groups", most)
		}
	})
}

// begin runs a Watch until stop is called.
func begin(t *testing.T, w *Watch) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() {
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	return func() { cancel(); run.Wait() }
}

// The probes open a third of a round after the start, and not at all if the agent ends before.
func TestProbesOpenAfterTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opened := 0
		standing := []probe.Probe{{Name: "counted", Open: func(context.Context, probe.Host, time.Time) (probe.Series, error) {
			opened++
			return nil, errors.New("it has no eyes")
		}}}
		c := DefaultConfig()
		c.Burst = 0
		stop := begin(t, New(c, Deps{Standing: standing, Log: quiet()}))
		time.Sleep(c.Every/3 - time.Second)
		stop()
		if opened != 0 {
			t.Errorf("%d probes were opened before the end", opened)
		}
		stop = begin(t, New(c, Deps{Standing: standing, Log: quiet()}))
		time.Sleep(c.Every/3 + time.Second)
		synctest.Wait()
		if opened != 1 {
			t.Errorf("%d probes are open after a third of a round", opened)
		}
		stop()
	})
}

// A finding that only bursts see begins with a burst and ends with one.
func TestBurst(t *testing.T) {
	host := newMadeUp(t)
	host.dying(1500) // suspicious, but not a finding
	synctest.Test(t, func(t *testing.T) {
		var wait atomic.Int64
		wait.Store(5)
		c := DefaultConfig()
		w := New(c, Deps{Standing: host.standing(), Probes: deep(&wait), Log: quiet(), Engine: silent{}})
		stop := begin(t, w)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		s := w.Status()
		if len(s.Bursts) != 1 || s.Bursts[0].Why != "many dying memory cgroups" || len(s.Findings) != 1 || s.Findings[0].Rule != "kernel-lock" {
			t.Errorf("%+v, %+v", s.Bursts, s.Findings)
		}
		wait.Store(0)
		time.Sleep(c.BurstEvery + 2*c.Every)
		synctest.Wait()
		if s = w.Status(); len(s.Bursts) != 2 || len(s.Findings) != 0 {
			t.Errorf("%+v, %+v", s.Bursts, s.Findings)
		}
		// Nothing is suspicious any more, except for the request of another component.
		host.dying(10)
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		before := w.Status().Cost.Bursts
		w.Suspect()
		w.Suspect()
		time.Sleep(time.Minute)
		synctest.Wait()
		if s = w.Status(); s.Cost.Bursts != before+1 || s.Bursts[0].Why != slowSpinup {
			t.Errorf("%d bursts before, %+v", before, s.Bursts)
		}
		stop()
	})
}

// The raw machine is tested four times a day. A machine that is slower than in its earlier tests
// is a finding, and the next tests end it.
func TestMachine(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var wait, cpu atomic.Int64
		cpu.Store(400)
		tests := 0
		machine := probe.Probe{Name: "machine", Gives: []string{fact.CheckCPU, fact.CheckMem}, Busy: true,
			Open: func(context.Context, probe.Host, time.Time) (probe.Series, error) {
				tests++
				return madeUpMachine{&cpu}, nil
			}}
		c := DefaultConfig()
		c.Every = maxEvery
		w := New(c, Deps{Standing: []probe.Probe{}, Probes: deep(&wait), Machine: machine, Store: NewStore(dir, c.Keep, quiet()), Log: quiet(), Engine: silent{}})
		stop := begin(t, w)
		time.Sleep(23 * time.Hour)
		synctest.Wait()
		s := w.Status()
		summary, _ := w.Summary()
		if tests != 4 || len(s.Findings) != 0 || summary[fact.CheckCPU] != 400 {
			t.Errorf("after 23 h: %d tests, %+v, %v", tests, s.Findings, summary)
		}
		if past, err := w.deps.Store.Past(); err != nil || len(past) != 2 {
			t.Errorf("the past is %+v, %v", past, err)
		}
		cpu.Store(200)
		time.Sleep(6 * time.Hour)
		synctest.Wait()
		if s = w.Status(); len(s.Findings) != 1 || s.Findings[0].Rule != "slow-machine" {
			t.Errorf("a slower CPU: %+v", s.Findings)
		}
		cpu.Store(390)
		time.Sleep(time.Hour)
		synctest.Wait()
		if s = w.Status(); len(s.Findings) != 0 {
			t.Errorf("a CPU as fast as before: %+v", s.Findings)
		}
		stop()
	})
}

type madeUpMachine struct{ cpu *atomic.Int64 }

func (m madeUpMachine) Read(context.Context, time.Time) ([]fact.Fact, error) {
	return []fact.Fact{{Name: fact.CheckCPU, Value: float64(m.cpu.Load()), Unit: fact.MiBPerSec}, {Name: fact.CheckMem, Value: 5000, Unit: fact.MiBPerSec}}, nil
}

func (madeUpMachine) Close() error { return nil }

// silent is an engine that does not respond.
type silent struct{}

func (silent) List(context.Context, map[string]string) ([]engine.Container, error) {
	return nil, holdfast.ErrEngine
}

// A reader that does not read its events is closed and blocks no other component.
func TestSlowReaderIsClosed(t *testing.T) {
	w := New(DefaultConfig(), Deps{Standing: []probe.Probe{}, Log: quiet()})
	events, err := w.Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 * streamBuffer {
		w.record(examination{at: start.Add(time.Duration(i) * time.Second), deep: true, judged: map[string]bool{"a": true},
			findings: []doctor.Finding{finding("a", rule.Warning, fmt.Sprint("/g", i))}})
	}
	n := 0
	for range events {
		n++
	}
	if n != streamBuffer {
		t.Errorf("%d events before the end, want %d", n, streamBuffer)
	}
	for range maxStreams {
		if _, err := w.Events(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Events(t.Context()); !errors.Is(err, holdfast.ErrBusy) {
		t.Errorf("a reader beyond the bound: %v", err)
	}
	w.endStreams()
}

func exposed(t *testing.T, reg *prometheus.Registry) string {
	t.Helper()
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range all {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			fmt.Fprintf(&b, "%s{%s} %v\n", f.GetName(), strings.Join(labels, ","), m.GetGauge().GetValue()+m.GetCounter().GetValue())
		}
	}
	return b.String()
}

func TestMetricNames(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg)
	var all []fact.Fact
	for _, u := range []fact.Unit{fact.Count, fact.Bytes, fact.Seconds, fact.Millis, fact.Share, fact.PerSecond, fact.MiBPerSec} {
		all = append(all, fact.Fact{Name: "x." + string(u), Value: 1500, Unit: u})
	}
	m.facts(all)
	m.round(time.Millisecond, time.Second)
	m.burst(slowSpinup, time.Millisecond)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	if text := exposed(t, reg); !strings.Contains(text, `holdfast_doctor_fact_seconds{fact="x_ms"} 1.5`) {
		t.Errorf("milliseconds are exported as seconds:\n%s", text)
	}
	// A fact without a current value is no longer exported.
	m.facts(all[:1])
	if text := exposed(t, reg); strings.Contains(text, "fact_bytes") {
		t.Errorf("bytes are still exported:\n%s", text)
	}
}

// here describes this host.
func here(t *testing.T) probe.Host {
	t.Helper()
	groups, err := cgroup.Find(proc.Host)
	if err != nil {
		t.Fatal(err)
	}
	return probe.Host{Proc: proc.Host, Sys: "/sys", Groups: groups, Child: []string{"/proc/self/exe", probe.RoleAlloc}, Scratch: t.TempDir()}
}

// On this host: real drills begin as findings that name their group, and end.
func TestDrillsBeginAndEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: drills take half a minute each, and root")
	}
	h := here(t)
	for _, name := range []string{"fadvise", "throttle"} {
		t.Run(name, func(t *testing.T) {
			d, err := drill.Find(name)
			if err != nil {
				t.Fatal(err)
			}
			c := DefaultConfig()
			c.Every, c.Burst = 2*time.Second, 0
			c.Share = 1 // the race detector makes rounds expensive
			w := New(c, Deps{Host: h, Log: quiet()})
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() {
				if err := w.Run(ctx); err != nil {
					t.Error(err)
				}
			})
			defer running.Wait()
			defer cancel()
			standing, stop := context.WithCancel(ctx)
			defer stop()
			ready, ended := make(chan drill.Running, 1), make(chan error, 1)
			running.Go(func() {
				ended <- drill.Run(standing, d, drill.Options{For: 5 * time.Minute, Dir: t.TempDir(), Groups: h.Groups,
					Worker: []string{"/proc/self/exe", drill.Role}, Ready: func(r drill.Running) { ready <- r }})
			})
			var at drill.Running
			select {
			case at = <-ready:
			case err := <-ended:
				t.Fatalf("drill %s: %v", name, err)
			}
			named := func() *Open {
				for _, o := range w.Status().Findings {
					if o.Rule == at.Rule && strings.HasPrefix(o.Culprit.Cgroup, at.Group) {
						return &o
					}
				}
				return nil
			}
			poll.Until(t, "the drill is found", func() bool { return named() != nil })
			if o := named(); name == "fadvise" && o != nil && !strings.Contains(strings.Join(o.Culprit.Kernel, " "), "fadvise64") {
				t.Errorf("kernel path %v", o.Culprit.Kernel)
			}
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			poll.Until(t, "the finding is over", func() bool { return named() == nil })
		})
	}
}
