package history

import (
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/hosts/protect"
)

// metrics reads the figures from the file at every scrape, because each protect
// is another process.
type metrics struct {
	dir string
	log *slog.Logger

	holds, failed, connections, longest *prometheus.Desc
}

// NewMetrics returns a collector of the figures of all holds on this host since
// its boot, by backend, read from the lock directory dir.
func NewMetrics(dir string, log *slog.Logger) prometheus.Collector {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("holdfast_protect_"+name, help+" since the host's boot, by backend.", []string{"backend"}, nil)
	}
	return &metrics{
		dir: dir, log: log,
		holds:       desc("holds_total", "Restarts during which connections were held,"),
		failed:      desc("failed_holds_total", "Holds that ended without a server that listens and is ready,"),
		connections: desc("connections_total", "Connections that waited,"),
		longest:     desc("longest_wait_seconds", "Longest wait of a connection in seconds,"),
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.holds, m.failed, m.connections, m.longest} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	h, err := Read(m.dir)
	if err != nil {
		m.log.Warn("metrics: " + err.Error())
		return
	}
	for _, backend := range protect.Names() {
		if _, ok := h.Totals[backend]; !ok && backend != protect.Auto {
			h.Totals[backend] = Total{} // a rate needs the 0 before the first 1
		}
	}
	for backend, t := range h.Totals {
		counter := func(d *prometheus.Desc, v int) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), string(backend))
		}
		counter(m.holds, t.Holds)
		counter(m.failed, t.Failed)
		counter(m.connections, t.Connections)
		ch <- prometheus.MustNewConstMetric(m.longest, prometheus.GaugeValue, t.Longest.Seconds(), string(backend))
	}
}
