package dashboard

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
)

// Intervals of the page, and how long its data is kept.
const (
	sloEvery = 15 * time.Second
	sloKept  = time.Hour
)

// faults are the reasons of failed connects that are not the client's fault: the alert
// on failed connects counts them.
const faults = "boot|busy|draining|elsewhere|engine|parked_too_long|refused|stopped|stopping|store|timeout|upstream"

// Metrics of the page.
const (
	bootMetric     = "holdfast_session_boot_seconds"
	parkMetric     = "holdfast_gateway_park_seconds"
	parkedMetric   = "holdfast_gateway_parked_requests"
	connectsMetric = "holdfast_gateway_connects_total"
	errorsMetric   = "holdfast_gateway_connect_errors_total"
)

// snapshot has the metrics of one moment. All values but Parked only grow.
type snapshot struct {
	at                               time.Time
	Boots, Parks                     histogram
	Failed, Connects, Errors, Parked float64
}

func snapshotOf(at time.Time, g gathered) snapshot {
	s := snapshot{at: at, Boots: histogramOf(g.series(bootMetric, "phase=total", "outcome=ok")), Parks: histogramOf(g.series(parkMetric))}
	s.Failed = histogramOf(g.series(bootMetric, "phase=total", "outcome=failed")).Total
	s.Connects, _ = g.sum(connectsMetric)
	s.Errors, _ = g.sum(errorsMetric, "reason=~"+faults)
	s.Parked, _ = g.sum(parkedMetric)
	return s
}

// since returns the difference to an earlier snapshot; Parked is that of the later one.
func (s snapshot) since(was snapshot) snapshot {
	return snapshot{at: s.at, Boots: s.Boots.since(was.Boots), Parks: s.Parks.since(was.Parks), Failed: s.Failed - was.Failed,
		Connects: s.Connects - was.Connects, Errors: s.Errors - was.Errors, Parked: s.Parked}
}

// errorRate is the share of connects that failed, 0 if there were none.
func (s snapshot) errorRate() float64 {
	if s.Connects <= 0 {
		return 0
	}
	return min(1, s.Errors/s.Connects)
}

// Rate formats the share of connects that failed.
func (s snapshot) Rate() string {
	if s.Connects <= 0 {
		return "–"
	}
	return share(s.errorRate())
}

// recent are the snapshots of the last hour, the oldest first. Any goroutine may use
// it.
type recent struct {
	mu  sync.Mutex
	all []snapshot
}

func (r *recent) add(s snapshot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, s)
	for len(r.all) > 1 && s.at.Sub(r.all[1].at) >= sloKept { // the first is older than one hour
		r.all = r.all[1:]
	}
}

func (r *recent) list() []snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all)
}

// before returns the last snapshot at or before t, the first one if all are later, and
// the zero snapshot if there are none.
func before(all []snapshot, t time.Time) snapshot {
	i, found := slices.BinarySearchFunc(all, t, func(s snapshot, t time.Time) int { return s.at.Compare(t) })
	switch {
	case len(all) == 0:
		return snapshot{}
	case found:
		return all[i]
	}
	return all[max(i-1, 0)]
}

// watchSLO takes snapshots until ctx is done. An open page takes one of its own.
func (d *Dashboard) watchSLO(ctx context.Context) error {
	t := time.NewTicker(sloEvery)
	defer t.Stop()
	for {
		if g, err := d.metrics.get(ctx); err == nil && g != nil { // otherwise the page shows the error
			d.recent.add(snapshotOf(time.Now(), g))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// sloData is the data of the page.
type sloData struct {
	Trouble         string
	P50, P99        figure
	Errors, Connect figure
	Rate            string
	Parked          figure
	Windows         []sloRow
	Charts          []chart
	Minutes         []sloRow // the newest first
	Reasons         []reason
}

// sloRow has the figures of one interval.
type sloRow struct {
	Name, At string
	snapshot
}

// reason is a reason of failed connects.
type reason struct {
	Name   string
	N      figure
	Client bool // the client's fault
}

// sloFleet has the boot times of all ready sessions.
type sloFleet struct {
	Sessions, P50, P99, Most string
	Slowest                  []api.Session
	Now                      time.Time
}

func sloParts(ctx context.Context, d *Dashboard, _ view) ([]part, error) {
	g, err := d.metrics.get(ctx)
	var data sloData
	switch {
	case err != nil:
		data.Trouble = err.Error()
	case g == nil:
		data.Trouble = "this agent has no metrics"
	default:
		data.fill(g, d.recent.list())
	}
	return []part{{"figures", sloFigures(data)}, {"windows", sloWindows(data)}, {"charts", sloCharts(data)},
		{"reasons", sloReasons(data)}, {"fleet", sloBoots(fleetBoots(d.state(ctx)))}}, nil
}

func (s *sloData) fill(g gathered, past []snapshot) {
	s.P50 = g.quantile(.5, bootMetric, "phase=total", "outcome=ok")
	s.P99 = g.quantile(.99, bootMetric, "phase=total", "outcome=ok")
	s.Connect = g.figure(whole, connectsMetric)
	s.Errors = g.figure(whole, errorsMetric, "reason=~"+faults)
	s.Parked = g.figure(whole, parkedMetric)
	now := snapshotOf(time.Now(), g)
	s.Rate = now.Rate()
	for _, w := range []struct {
		name string
		long time.Duration
	}{{"last 5 minutes", 5 * time.Minute}, {"last hour", time.Hour}} {
		s.Windows = append(s.Windows, sloRow{Name: w.name, snapshot: now.since(before(past, now.at.Add(-w.long)))})
	}
	s.Windows = append(s.Windows, sloRow{Name: "since the start of this agent", snapshot: now})
	s.minutes(append(past, now))
	for _, m := range g.series(errorsMetric) {
		name := m.Label[0].GetValue()
		if v := m.GetCounter().GetValue(); v > 0 {
			s.Reasons = append(s.Reasons, reason{name, number(selector(errorsMetric, "reason="+name), v, whole(v)), !slices.Contains(strings.Split(faults, "|"), name)})
		}
	}
}

// minutes sets the last hour by minute, as charts and as a table.
func (s *sloData) minutes(past []snapshot) {
	end := past[len(past)-1].at.Truncate(time.Minute)
	var boots, errs, parked []point
	for t := end.Add(-59 * time.Minute); !t.After(end); t = t.Add(time.Minute) {
		m := before(past, t.Add(time.Minute)).since(before(past, t))
		m.Parked = 0
		for _, p := range past {
			if !p.at.Before(t) && p.at.Before(t.Add(time.Minute)) {
				m.Parked = max(m.Parked, p.Parked)
			}
		}
		name := t.UTC().Format("15:04")
		p99, _ := m.Boots.quantile(.99)
		boots = append(boots, point{value: p99, class: "a", title: fmt.Sprintf("%s: p99 %s of %s boots", name, m.Boots.Quantile(.99), whole(m.Boots.Total))})
		errs = append(errs, point{value: 100 * m.errorRate(), class: "bad", title: fmt.Sprintf("%s: %s of %s connects failed", name, m.Rate(), whole(m.Connects))})
		parked = append(parked, point{value: m.Parked, class: "a", title: fmt.Sprintf("%s: %s parked", name, whole(m.Parked))})
		s.Minutes = append(s.Minutes, sloRow{name, stamp(t), m})
	}
	slices.Reverse(s.Minutes)
	const from, to = "an hour ago", "now"
	s.Charts = []chart{newChart("Boots, p99", from, to, boots, .1, duration),
		newChart("Failed connects", from, to, errs, 1, func(v float64) string { return fmt.Sprintf("%g %%", v) }),
		newChart("Parked", from, to, parked, 1, whole)}
}

// slowestShown is how many sessions the page lists.
const slowestShown = 5

// fleetBoots summarizes the boot times in the records of all ready sessions.
func fleetBoots(st *state) sloFleet {
	type boot struct {
		took    holdfast.Millis
		session int
	}
	var all []boot
	for i, s := range st.sessions {
		if total := s.Boot.Total(); s.State == holdfast.Ready && total > 0 {
			all = append(all, boot{total, i})
		}
	}
	f := sloFleet{Sessions: thousands(len(all)), Now: st.now()}
	if len(all) == 0 {
		return f
	}
	sort.Slice(all, func(i, j int) bool {
		a, b := &all[i], &all[j]
		return cmp.Or(cmp.Compare(b.took, a.took), cmp.Compare(a.session, b.session)) < 0
	})
	at := func(q float64) string { // the nearest rank, from the slow end
		return took(all[min(len(all)-1, int((1-q)*float64(len(all))))].took)
	}
	f.P50, f.P99, f.Most = at(.5), at(.99), at(1)
	for _, b := range all[:min(slowestShown, len(all))] {
		f.Slowest = append(f.Slowest, st.sessions[b.session])
	}
	return f
}
