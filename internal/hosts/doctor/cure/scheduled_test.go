package cure_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/hosts/doctor/cure"
	"holdfast/internal/hosts/doctor/drill"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/hosts/doctor/schedule"
	"holdfast/internal/hosts/doctor/watch"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// quietHost is a doctor that sees no pressure and has no finding.
type quietHost struct{}

func (quietHost) Summary() (map[string]float64, time.Time) {
	return map[string]float64{fact.MemPSIFull: 0, fact.IOFull: 0}, time.Now()
}
func (quietHost) Status() watch.Status { return watch.Status{} }

// scheduled runs one scheduled cure on this host until its effect is recorded.
func scheduled(t *testing.T, name string) cure.Report {
	t.Helper()
	e, dir := env(t), t.TempDir()
	s := schedule.New([]schedule.Entry{{Cure: name, When: schedule.WhenAlways, Bytes: "1TiB"}}, schedule.Deps{
		DataDir: dir, Doctor: quietHost{}, Host: e.Host, Guard: e.Guard, Every: 50 * time.Millisecond,
		Metrics: prometheus.NewRegistry(), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = s.Run(ctx) })
	defer running.Wait()
	defer cancel()
	var list []cure.Report
	poll.Until(t, "the effect of "+name+" is recorded", func() bool {
		if st := s.States()[0]; st.Outcome != "" && st.Outcome != "done" && st.Outcome != "early" {
			t.Fatalf("%+v", st)
		}
		var err error
		list, err = cure.Journal{Path: dir + "/" + cure.FileName}.List(0)
		return err == nil && len(list) == 1 && len(list[0].Host) > 0
	})
	if r := list[0]; !r.Applied || !r.Scheduled || r.Harm != "" || r.Host[0].What != "time stalled on memory" {
		t.Errorf("%+v", r)
	}
	return list[0]
}

// An agent's schedule carries out a real cure, and records its effect.
func TestScheduled(t *testing.T) {
	groups := float64(deadGroups(300))
	during(t, "zombies", int(groups), func(drill.Running) {
		r := scheduled(t, "pinned")
		if f := figure(t, r, "these files"); f.Before < groups*4096*0.9 || f.After > f.Before-groups*4096*0.9 {
			t.Errorf("pages not dropped: %+v", f)
		}
	})
}

// Slab is dropped, and page cache stays.
func TestDropSlab(t *testing.T) {
	labtest.NeedLong(t, "it drops the directory entries of the whole host")
	resident := livePages(t, newGroup(t, "/cure-test-slab"), 16)
	before := resident()
	during(t, "dentries", 200_000, func(drill.Running) {
		names := negative(t)
		r := scheduled(t, "drop-slab")
		if left := negative(t); names < 200_000 || left > names-150_000 {
			t.Errorf("of %.0f negative entries %.0f are left: %+v", names, left, r)
		}
	})
	if after := resident(); float64(before-after) > 0.05*float64(before) {
		t.Errorf("of %d bytes of live page cache %d are left", before, after)
	}
}

// negative returns the number of this host's directory entries without a file.
func negative(t *testing.T) float64 {
	t.Helper()
	h, err := hostHere()
	if err != nil {
		t.Fatal(err)
	}
	facts, err := probe.Read(t.Context(), h, "dentry")
	if err != nil {
		t.Fatal(err)
	}
	return fact.Summary(facts)[fact.DentryNegative]
}
