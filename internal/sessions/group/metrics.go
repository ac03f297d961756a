package group

import (
	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/platform/metric"
)

// Metrics are the metrics of groups. Only the keeper of a group reports it.
type Metrics struct{ replicas *prometheus.GaugeVec }

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	r := metric.Registry{Registerer: reg}
	return &Metrics{replicas: r.GaugeVec("holdfast_group_replicas",
		"Replicas of a group by state (wanted, joining, serving, leaving). Only the node that keeps the group has it.", "group", "state")}
}

func (m *Metrics) counted(one holdfast.Group, wanted int) {
	counts := map[holdfast.ReplicaState]int{holdfast.ReplicaJoining: 0, holdfast.ReplicaServing: 0, holdfast.ReplicaLeaving: 0, "wanted": wanted}
	for _, r := range one.Replicas {
		counts[r.State]++
	}
	for state, n := range counts {
		m.replicas.WithLabelValues(one.Name, string(state)).Set(float64(n))
	}
}

// dropped removes a group that another node keeps.
func (m *Metrics) dropped(name string) {
	m.replicas.DeletePartialMatch(prometheus.Labels{"group": name})
}
