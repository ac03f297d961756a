package evacuate

import (
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/platform/metric"
)

// Metrics are the metrics of evacuations.
type Metrics struct {
	notices *prometheus.CounterVec
	pods    *prometheus.CounterVec
}

// NewMetrics registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	r := metric.Registry{Registerer: reg}
	m := &Metrics{
		notices: r.CounterVec("holdfast_kubernetes_notices_total",
			"Notices that the node is leaving, by source and kind (terminate, rebalance, withdrawn).", "source", "kind"),
		pods: r.CounterVec("holdfast_kubernetes_evacuated_pods_total", "Pods of a leaving node, by how they ended (ended, short_grace, overrode, killed, left).", "how"),
	}
	metric.Start(m.pods, Ended, ShortGrace, Overrode, Killed, Left)
	return m
}
