package apitest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/baseline"
	"holdfast/internal/hosts/doctor/cure"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/hosts/doctor/ranking"
	"holdfast/internal/hosts/doctor/rule"
	"holdfast/internal/hosts/doctor/schedule"
	"holdfast/internal/hosts/doctor/watch"
)

// SetDoctor makes the backend's host a sick one, in a fleet of sick and healthy
// hosts. Without it the host is healthy and alone.
func (b *Backend) SetDoctor() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sick = true
}

// someFinding returns a finding with every field set. Its lists may be nil, as those of a
// rule.
func someFinding() doctor.Finding {
	return doctor.Finding{
		Finding: rule.Finding{
			Rule: "dying-cgroups", Severity: rule.Critical, Title: "50,000 memory cgroups are dying and cannot be released",
			Evidence: []rule.Evidence{{What: "dying memory cgroups", Found: "50,000", Healthy: "a few hundred"}},
			Culprit:  fact.Subject{Cgroup: "/docker"},
		},
		Subject: &doctor.Subject{Cgroup: "/docker"},
	}
}

// doctorOf implements api.Doctor.
type doctorOf struct{ b *Backend }

func (d doctorOf) Status(context.Context) (api.DoctorStatus, error) {
	b := d.b
	b.mu.Lock()
	defer b.mu.Unlock()
	s := api.DoctorStatus{Node: b.node(), Kernel: "6.1.0-18-amd64", Role: "ci", Status: watch.Status{
		At: Began.Add(89 * time.Minute),
		Facts: []fact.Fact{
			{Name: fact.HostUptime, Value: 90000, Unit: fact.Seconds, At: Began}, {Name: fact.MemcgDying, Value: 50000, At: Began},
			{Name: fact.ReclaimP99, Value: 8, Unit: fact.Millis, At: Began}, {Name: fact.SlabCache, Value: 64 << 20, Unit: fact.Bytes, Subject: fact.Subject{Device: "dentry"}, At: Began},
		},
		Checked: []doctor.Check{{Rule: "mount-leak", Verdict: doctor.Fine}, {Rule: "kernel-lock", Verdict: doctor.NotJudged, Why: "lock.seen: no round looks at locks"}},
		Gaps:    []fact.Gap{{Probe: "drains", Sees: "posix_fadvise storms", Why: "BPF is not allowed", Hint: "run it as root"}},
		Cost:    watch.Cost{Rounds: 530, Bursts: 2, Seconds: 5340, CPU: 10.68, Every: 10},
		Bursts:  []watch.Burst{{At: Began.Add(time.Hour), Why: "memory cgroups die slowly", Findings: 1, CPU: 0.4}},
	}}
	if b.sick {
		s.Findings = []watch.Open{{Finding: someFinding(), Since: Began, Seen: Began.Add(89 * time.Minute)}}
		s.Degraded, s.DegradedSince, s.Resting = "dying-cgroups: 50,000 memory cgroups are dying and cannot be released", Began, true
	}
	return s, b.fault
}

func (d doctorOf) History(since time.Time, limit int) (watch.History, error) {
	b := d.b
	b.mu.Lock()
	defer b.mu.Unlock()
	var h watch.History
	if !b.sick {
		return h, b.fault
	}
	over := someFinding()
	over.Rule, over.Severity, over.Title = "throttling", rule.Warning, "a container is throttled"
	h.Events = []watch.Event{
		{At: Began, Kind: watch.Began, Since: Began, Finding: someFinding()},
		{At: Began.Add(-time.Hour), Kind: watch.Ended, Since: Began.Add(-2 * time.Hour), Finding: over},
		{At: Began.Add(-2 * time.Hour), Kind: watch.Began, Since: Began.Add(-2 * time.Hour), Finding: over},
	}
	h.Samples = []watch.Sample{{At: Began, Seconds: 60, Facts: map[string]watch.Figure{fact.MemcgDying: {Mean: 49000, Max: 50000, N: 6}}}}
	h.Events = slices.DeleteFunc(h.Events, func(e watch.Event) bool { return e.At.Before(since) })
	if limit > 0 {
		h.Events = h.Events[:min(limit, len(h.Events))]
	}
	return h, b.fault
}

// Events yields one event and ends.
func (d doctorOf) Events(context.Context) (<-chan watch.Event, error) {
	b := d.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fault != nil {
		return nil, b.fault
	}
	ch := make(chan watch.Event, 1)
	ch <- watch.Event{At: Began, Kind: watch.Began, Since: Began, Finding: someFinding()}
	close(ch)
	return ch, nil
}

// Ranking is of a fleet in which old hosts are slow.
func (d doctorOf) Ranking(_ context.Context, by ranking.By) (ranking.Ranking, error) {
	b := d.b
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []ranking.Record
	for i := range 20 {
		if !b.sick && i > 0 {
			break
		}
		r := ranking.Record{Node: holdfast.NodeID(fmt.Sprint("n", i)), At: Began, Kernel: "6.1.0", Facts: map[string]float64{
			fact.HostUptime: float64(86400 * (1 + i%5)), fact.MemcgDying: float64(200 + 10*i), fact.HostCPUs: 8, fact.SlabTotal: float64(i%3) * (1 << 30),
		}, Spinups: ranking.Spinups{Count: 50, P50: 0.5 + float64(i)/100, P99: 1}}
		if i < 8 {
			r.Facts[fact.HostUptime], r.Facts[fact.MemcgDying] = float64(86400*(80+i)), float64(50000+i)
			r.Spinups.P50, r.Spinups.Slow = 7, 20
		}
		all = append(all, r)
	}
	return ranking.Rank(all, by), b.fault
}

func (d doctorOf) Baselines(context.Context) ([]baseline.Baseline, error) {
	b := d.b
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.baselines), b.fault
}

func (d doctorOf) SaveBaseline(_ context.Context, x baseline.Baseline) error {
	b := d.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fault == nil {
		b.baselines = append(slices.DeleteFunc(b.baselines, func(y baseline.Baseline) bool { return y.Name == x.Name }), x)
	}
	return b.fault
}

func (d doctorOf) RemoveBaseline(_ context.Context, name string) error {
	b := d.b
	b.mu.Lock()
	defer b.mu.Unlock()
	n := len(b.baselines)
	b.baselines = slices.DeleteFunc(b.baselines, func(y baseline.Baseline) bool { return y.Name == name })
	if b.fault == nil && len(b.baselines) == n {
		return fmt.Errorf("baseline %s: %w", name, holdfast.ErrNotFound)
	}
	return b.fault
}

// SomeBaseline is the baseline of a healthy host.
func SomeBaseline() baseline.Baseline {
	return baseline.Baseline{
		Name: "ci-6.1.0", At: Began, Node: "n9", Kernel: "6.1.0", Role: "ci", Seconds: 30,
		Facts:   map[string]float64{fact.CPUBusy: 0.1, fact.HostUptime: 9000},
		Units:   map[string]fact.Unit{fact.CPUBusy: fact.Share, fact.HostUptime: fact.Seconds},
		Profile: &baseline.Profile{File: "good.pb.gz", SHA256: "00", Bytes: 7},
	}
}

// Cures implements api.Doctor.
func (d doctorOf) Cures(int) ([]schedule.State, []cure.Report, error) {
	b := d.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.sick {
		return nil, nil, b.fault
	}
	s := schedule.State{Cure: "memcg", When: schedule.WhenFinding, Every: holdfast.Millis(6 * time.Hour), Window: "02:00-05:00", Bytes: "1GiB", For: holdfast.Millis(30 * time.Second),
		LastRun: Began, Outcome: "harm: time stalled on memory rose from 0.1 % to 8.0 %", Waiting: "it is stopped"}
	if !b.allowed {
		s.Stopped, s.StoppedAt = "time stalled on memory rose from 0.1 % to 8.0 %", Began.Add(time.Minute)
	}
	figures := []cure.Figure{{What: "time stalled on memory", Unit: "share", Before: 0.001, After: 0.08}}
	return []schedule.State{s}, []cure.Report{{Cure: "memcg", Target: "/docker", At: Began, Applied: true, Scheduled: true, Seconds: 4, Host: figures, Harm: "time stalled on memory rose from 0.1 % to 8.0 %"}}, b.fault
}

// AllowCure implements api.Doctor.
func (d doctorOf) AllowCure(name string) error {
	b := d.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fault == nil && name != "memcg" {
		return fmt.Errorf("scheduled cure %q: %w", name, holdfast.ErrNotFound)
	}
	b.allowed = b.fault == nil
	return b.fault
}
