package agent

import (
	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
)

// registerNodeFigures exports the published record of this node as metrics. The dashboard
// shows the same record.
func (a *Agent) registerNodeFigures() {
	gauge := func(name, help string, labels prometheus.Labels, value func() float64) {
		a.metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "holdfast_node_" + name, Help: help, ConstLabels: labels}, value))
	}
	for _, state := range []holdfast.State{holdfast.Claimed, holdfast.Starting, holdfast.Ready, holdfast.Leaving} {
		gauge("sessions", "Sessions of this node, by state.", prometheus.Labels{"state": string(state)}, func() float64 {
			n := 0
			for _, s := range a.sessions.List() {
				if s.Owner.State == state {
					n++
				}
			}
			return float64(n)
		})
	}
	gauge("boots", "Containers that start on this node, and those that wait for a start.", nil, func() float64 {
		_, boots := a.sessions.Counts()
		return float64(boots)
	})
	gauge("draining", "1 if this node refuses new sessions, else 0.", nil, func() float64 {
		if a.sessions.Draining() {
			return 1
		}
		return 0
	})
	gauge("cpu_busy_ratio", "Busy share of all CPUs, 0 to 1, as last published by the node.", nil, func() float64 { return a.published.Load().CPULoad })
	gauge("cpu_pressure_ratio", "Share of time in which a task waited for a CPU, 0 to 1, as last published by the node.", nil, func() float64 { return a.published.Load().Pressure })
	gauge("memory_available_bytes", "Memory available to programs, in bytes, as last published by the node.", nil, func() float64 { return float64(a.published.Load().Memory.Available) })
	gauge("memory_bytes", "Memory of the host, in bytes, as last published by the node.", nil, func() float64 { return float64(a.published.Load().Memory.Total) })
}
