package dashboard

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/hosts/gc"
)

// madeDisk returns a disk with that many free bytes.
func madeDisk(free int64) gc.Disk {
	return gc.Disk{Total: 500 << 30, Free: free, Inodes: 32_000_000, FreeInodes: 21_000_000}
}

// GCStatus returns the status of a busy host.
func (f *Fleet) GCStatus(context.Context) (gc.Status, error) {
	return gc.Status{
		Enabled: true, Disk: madeDisk(97 << 30), Level: gc.Between, Low: gc.Percent(75), High: gc.Percent(85), Critical: gc.Percent(95), Links: true, UnderWay: 2,
		Beside:    gc.Figures{Count: 412, Slow: 9, SlowPercent: 2.2, P50: holdfast.Millis(900 * time.Millisecond), P99: holdfast.Millis(9 * time.Second)},
		Without:   gc.Figures{Count: 9588, Slow: 201, SlowPercent: 2.1, P50: holdfast.Millis(880 * time.Millisecond), P99: holdfast.Millis(9 * time.Second)},
		Suspended: holdfast.Millis(41 * time.Minute),
	}, nil
}

// GCHistory returns one cycle for every few hours.
func (f *Fleet) GCHistory(limit int) (all []gc.Cycle, _ error) {
	for i := range min(120, limit) {
		free := int64(60+i%17) << 30
		c := gc.Cycle{Begun: f.made.Add(-time.Duration(i*3+1) * time.Hour), Took: holdfast.Millis(time.Duration(20+i%40) * time.Second), Ended: true, Trigger: gc.ByThreshold,
			Before: madeDisk(free), After: madeDisk(free + int64(10+7*(i%9))<<30), Planned: 12 + i%7, Deleted: make([]gc.Outcome, 11+i%7), Skipped: make([]gc.Outcome, 1),
			Suspended: holdfast.Millis(time.Duration(i%13) * 3 * time.Second)}
		switch i {
		case 3:
			c.Trigger, c.Notices = gc.BySchedule, []string{"this does not reach the low mark (75%)"}
		case 9:
			c.Error = "the engine does not answer"
		}
		all = append(all, c)
	}
	return all, nil
}

// Protection returns the holds of a host whose servers restart every day.
func (f *Fleet) Protection(context.Context) (api.Protection, error) {
	ms := func(n int) holdfast.Millis { return holdfast.Millis(time.Duration(n) * time.Millisecond) }
	p := api.Protection{
		Totals: []api.HoldTotal{{Backend: "migrate"}, {Backend: "nfqueue", Holds: 31, Connections: 1203, Longest: ms(640)},
			{Backend: "park", Holds: 169, Failed: 1, Connections: 20_114, Longest: ms(30_000)}, {Backend: "plug"}},
		Ports: []api.ProtectedPort{{Address: "443", Listening: true, Holds: 169, Connections: 20_114, Longest: ms(30_000)},
			{Address: "16000", Listening: false, Holds: 31, Connections: 1203, Longest: ms(640), Since: f.made.Add(-time.Second), Waiting: 17, Command: "holdfast protect --port 16000 -- systemctl restart haproxy"}},
	}
	for i := range 200 {
		h := api.Hold{At: f.made.Add(-time.Duration(i) * 7 * time.Hour), Ports: []uint16{443}, Program: "systemctl", Backend: "park", Took: ms(90 + i*7%80),
			Connections: 80 + i*13%90, Longest: ms(95 + i*31%120), Reason: "new server listens", Installed: true}
		if i == 40 {
			h.Failed, h.Reason, h.Longest, h.ExitCode = true, "time is up", ms(30_000), 1
		}
		p.Holds = append(p.Holds, h)
	}
	return p, nil
}

func (f *Fleet) protectMetrics(reg prometheus.Registerer) {
	p, _ := f.Protection(context.Background()) // it never fails
	counter := func(name string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "holdfast_protect_" + name}, []string{"backend"})
		reg.MustRegister(c)
		return c
	}
	holds, failed, connections := counter("holds_total"), counter("failed_holds_total"), counter("connections_total")
	longest := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "holdfast_protect_longest_wait_seconds"}, []string{"backend"})
	reg.MustRegister(longest)
	for _, t := range p.Totals {
		holds.WithLabelValues(t.Backend).Add(float64(t.Holds))
		failed.WithLabelValues(t.Backend).Add(float64(t.Failed))
		connections.WithLabelValues(t.Backend).Add(float64(t.Connections))
		longest.WithLabelValues(t.Backend).Set(time.Duration(t.Longest).Seconds())
	}
}
