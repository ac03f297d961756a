package agent

import (
	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
)

// nodeFigures exports the published record of this node as metrics. The dashboard shows
// the same record.
type nodeFigures struct {
	a                               *Agent
	sessions, boots, draining       *prometheus.Desc
	busy, pressure, memory, maximum *prometheus.Desc
}

func newNodeFigures(a *Agent) *nodeFigures {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("holdfast_node_"+name, help, labels, nil)
	}
	return &nodeFigures{
		a:        a,
		sessions: desc("sessions", "Sessions of this node, by state.", "state"),
		boots:    desc("boots", "Containers that start on this node, and those that wait for a start."),
		draining: desc("draining", "1 if this node refuses new sessions, else 0."),
		busy:     desc("cpu_busy_ratio", "Busy share of all CPUs, 0 to 1, as last published by the node."),
		pressure: desc("cpu_pressure_ratio", "Share of time in which a task waited for a CPU, 0 to 1, as last published by the node."),
		memory:   desc("memory_available_bytes", "Memory available to programs, in bytes, as last published by the node."),
		maximum:  desc("memory_bytes", "Memory of the host, in bytes, as last published by the node."),
	}
}

// Describe implements prometheus.Collector.
func (f *nodeFigures) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{f.sessions, f.boots, f.draining, f.busy, f.pressure, f.memory, f.maximum} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (f *nodeFigures) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	by := map[holdfast.State]int{}
	for _, s := range f.a.sessions.List() {
		by[s.Owner.State]++
	}
	for _, s := range []holdfast.State{holdfast.Claimed, holdfast.Starting, holdfast.Ready, holdfast.Leaving} {
		gauge(f.sessions, float64(by[s]), string(s))
	}
	_, boots := f.a.sessions.Counts()
	gauge(f.boots, float64(boots))
	draining := 0.0
	if f.a.sessions.Draining() {
		draining = 1
	}
	gauge(f.draining, draining)
	n := f.a.told.Load()
	if n == nil {
		return // it has not said anything yet
	}
	gauge(f.busy, n.CPULoad)
	gauge(f.pressure, n.Pressure)
	gauge(f.memory, float64(n.Memory.Available))
	gauge(f.maximum, float64(n.Memory.Total))
}
