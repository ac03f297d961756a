package dashboard

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/hosts/doctor/profile"
	"holdfast/internal/hosts/doctor/ranking"
	"holdfast/internal/hosts/doctor/recordings"
	"holdfast/internal/hosts/doctor/rule"
	"holdfast/internal/hosts/doctor/watch"
)

// madeFinding returns a finding about a logging container.
func madeFinding() doctor.Finding {
	return doctor.Finding{
		Finding: rule.Finding{Rule: "fadvise-storm", Severity: rule.Critical, Title: "posix_fadvise drains the page vectors of all CPUs 4,100 times a second",
			Evidence: []rule.Evidence{{What: "drains of all CPUs", Found: "4,100/s", Healthy: "under 100/s"}, {What: "CPU time that they take", Found: "43 %", Healthy: "under 1 %"}},
			Cures: []rule.Cure{{What: "Have its logger not call posix_fadvise after each line."},
				{What: "Forbid the call to the container", Command: "holdfast doctor cure fadvise --container log-3"}}},
		Subject: &doctor.Subject{Container: "log-3", ContainerID: fmt.Sprintf("%064x", 77), Image: "logger:2", Pid: 4711, Command: "logger -f /var/log/app.log",
			Kernel: []string{"__lru_add_drain_all", "generic_fadvise", "ksys_fadvise64_64"}},
		Against: []doctor.Subject{{Container: "web-1", Image: "shop:7"}},
	}
}

// DoctorStatus returns the status of a host with findings.
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

// DoctorHistory returns the findings of a week.
func (f *Fleet) DoctorHistory(_ time.Time, limit int) (h watch.History, _ error) {
	for i := range min(limit, 60) {
		e := watch.Event{At: f.made.Add(-time.Duration(i*163+41) * time.Minute), Kind: watch.Began, Finding: madeFinding()}
		if i%2 == 1 {
			e.Kind, e.Since = watch.Ended, e.At.Add(-55*time.Minute)
		}
		h.Events = append(h.Events, e)
	}
	return h, nil
}

// DoctorFleet returns a fleet whose old hosts are slow.
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

// Recordings returns two recordings of one host: a healthy one, and one with a fault.
func (f *Fleet) Recordings() ([]recordings.Recording, error) {
	var all []recordings.Recording
	for i := range 2 {
		p := f.recording(i == 0)
		at := f.made.Add(-time.Duration(i) * time.Hour)
		all = append(all, recordings.Recording{ID: "20260101-0" + fmt.Sprint(9-i) + "0000-000", At: at, Seconds: p.Meta.Seconds, Host: p.Meta.Host, Kernel: p.Meta.Kernel, CPUs: p.Meta.CPUs,
			Samples: p.Total(), Busy: p.Busy(), Bytes: 18_321})
	}
	return all, nil
}

// Recording returns the recording with the fault for the id of nine o'clock, and the
// healthy one for any other id.
func (f *Fleet) Recording(id string) (*profile.Profile, error) {
	return f.recording(id == "20260101-090000-000"), nil
}

func (f *Fleet) recording(sick bool) *profile.Profile {
	p := &profile.Profile{Meta: profile.Meta{Format: 1, Host: string(f.nodes[0].ID), Kernel: "6.12.0", CPUs: 8, Hz: 99, Began: f.made, Seconds: 10}}
	add := func(container, image string, count int64, stack ...string) { // outermost first; "k:" marks kernel functions
		s := profile.Sample{Task: profile.Task{Container: container, ContainerID: container, Image: image, Comm: container}, Count: count}
		for _, name := range stack {
			fn := profile.Frame{Name: name, File: "/bin/" + container}
			if k, ok := strings.CutPrefix(name, "k:"); ok {
				fn = profile.Frame{Name: k, Kernel: true}
			}
			i := slices.Index(p.Frames, fn)
			if i < 0 {
				i = len(p.Frames)
				p.Frames = append(p.Frames, fn)
			}
			s.Stack = append([]int{i}, s.Stack...)
		}
		p.Samples = append(p.Samples, s)
	}
	add("web-1", "shop:7", 1900, "main.main", "net/http.(*conn).serve", "shop/cart.(*Cart).Total", "shop/price.Of")
	add("web-1", "shop:7", 600, "main.main", "net/http.(*conn).serve", "encoding/json.Marshal")
	add("web-1", "shop:7", 300, "main.main", "net/http.(*conn).serve", "syscall.write", "k:ksys_write", "k:tcp_sendmsg")
	add("log-3", "logger:2", 120, "main.main", "main.flush")
	if sick {
		add("log-3", "logger:2", 3100, "main.main", "main.flush", "k:ksys_fadvise64_64", "k:generic_fadvise", "k:__lru_add_drain_all")
	}
	return p
}
