package dashboard

import (
	"context"
	"fmt"
	"time"

	"holdfast"
	"holdfast/internal/api"
	"holdfast/internal/doctor"
	"holdfast/internal/doctor/fact"
	"holdfast/internal/doctor/ranking"
	"holdfast/internal/doctor/rule"
	"holdfast/internal/doctor/watch"
)

// madeFinding is one that a logger causes.
func madeFinding() doctor.Finding {
	return doctor.Finding{
		Finding: rule.Finding{Rule: "fadvise-storm", Severity: rule.Critical, Title: "posix_fadvise drains the page vectors of all CPUs 4,100 times a second",
			Evidence: []rule.Evidence{{What: "drains of all CPUs", Found: "4,100/s", Healthy: "under 100/s"}, {What: "CPU time that they take", Found: "43 %", Healthy: "under 1 %"}},
			Cures: []rule.Cure{{What: "Have its logger not call posix_fadvise after each line."},
				{What: "Forbid the call to the container", Command: "holdfast doctor cure fadvise --container log-3"}}},
		Who: &doctor.Who{Container: "log-3", ContainerID: fmt.Sprintf("%064x", 77), Image: "logger:2", Pid: 4711, Command: "logger -f /var/log/app.log",
			Kernel: []string{"__lru_add_drain_all", "generic_fadvise", "ksys_fadvise64_64"}},
		Against: []doctor.Who{{Container: "web-1", Image: "shop:7"}},
	}
}

// DoctorStatus is a sick host's.
func (f *Fleet) DoctorStatus(context.Context) (api.DoctorStatus, error) {
	near := doctor.Finding{Finding: rule.Finding{Rule: "limits-near", Severity: rule.Notice, Title: "82 % of the host's file handles are in use",
		Evidence: []rule.Evidence{{What: "open files", Found: "82 %", Healthy: "under 50 %"}}, Cures: []rule.Cure{{What: "Raise the limit", Command: "sysctl -w fs.file-max=2000000"}}}}
	s := api.DoctorStatus{Node: f.nodes[0].ID, Kernel: "6.12.0-1-amd64", Role: "ci", Degraded: "fadvise-storm: posix_fadvise drains the page vectors of all CPUs", DegradedSince: f.made.Add(-40 * time.Minute), Resting: true,
		Status: watch.Status{At: f.made, Cost: watch.Cost{Rounds: 8212, Bursts: 31, Seconds: 86_000, CPU: 430, Every: 10},
			Findings: []watch.Open{{Finding: madeFinding(), Since: f.made.Add(-41 * time.Minute), Seen: f.made}, {Finding: near, Since: f.made.Add(-90 * time.Hour), Seen: f.made}},
			Gaps:     []fact.Gap{{Probe: "drains", Sees: "posix_fadvise storms", Why: "BPF is not allowed", Hint: "run it as root"}}}}
	for _, r := range rule.All() {
		if r.Name != "fadvise-storm" && r.Name != "limits-near" {
			s.Checked = append(s.Checked, doctor.Check{Rule: r.Name, Verdict: doctor.Fine})
		}
	}
	return s, nil
}

// DoctorHistory is a week's.
func (f *Fleet) DoctorHistory(_ context.Context, _ time.Time, limit int) (h watch.History, _ error) {
	for i := range min(limit, 60) {
		e := watch.Event{At: f.made.Add(-time.Duration(i*163+41) * time.Minute), Kind: watch.Began, Finding: madeFinding()}
		if i%2 == 1 {
			e.Kind, e.Since = watch.Ended, e.At.Add(-55*time.Minute)
		}
		h.Events = append(h.Events, e)
	}
	return h, nil
}

// DoctorFleet is a fleet whose old hosts are slow.
func (f *Fleet) DoctorFleet(_ context.Context, by ranking.By) (ranking.Ranking, error) {
	var all []ranking.Record
	for i, n := range f.nodes {
		r := ranking.Record{Node: n.ID, At: f.made, Kernel: "6.12.0", Facts: map[string]float64{
			fact.HostUptime: float64(86_400 * (1 + i%9)), fact.MemcgDying: float64(200 + i*7%90), fact.SlabTotal: float64(1+i%5) * (1 << 30), fact.CPUBusy: float64(i%50) / 100,
		}, Spinups: ranking.Spinups{Count: 50, P50: .5 + float64(i%30)/100, P99: 1.2, Slow: i % 3}}
		if i%12 == 5 {
			r.Facts[fact.HostUptime], r.Facts[fact.MemcgDying] = float64(86_400*(70+i%40)), float64(40_000+i*31%9000)
			r.Spinups.P50, r.Spinups.P99, r.Spinups.Slow = 6.5+float64(i%9)/10, 14, 21
		}
		all = append(all, r)
	}
	return ranking.Rank(append(all, ranking.Record{Node: holdfast.NodeID("new-1"), At: f.made, Spinups: ranking.Spinups{Count: 1}}), by), nil
}
