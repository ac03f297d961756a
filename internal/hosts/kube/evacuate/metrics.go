package evacuate

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the metrics of evacuations. A nil *Metrics counts nothing.
type Metrics struct {
	notices *prometheus.CounterVec
	pods    *prometheus.CounterVec
}

// NewMetrics registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		notices: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_kubernetes_notices_total", Help: "Notices that the node is leaving, by source and kind (terminate, rebalance, over).",
		}, []string{"source", "kind"}),
		pods: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_kubernetes_evacuated_pods_total", Help: "Pods of a leaving node, by how they ended (ended, hurried, overrode, killed, left).",
		}, []string{"how"}),
	}
	reg.MustRegister(m.notices, m.pods)
	for _, how := range []string{Ended, Hurried, Overrode, Killed, Left} {
		m.pods.WithLabelValues(how)
	}
	return m
}

func (m *Metrics) heard(n Notice) {
	if m != nil {
		m.notices.WithLabelValues(n.Source, string(n.Kind)).Inc()
	}
}

func (m *Metrics) ended(how string, n int) {
	if m != nil {
		m.pods.WithLabelValues(how).Add(float64(n))
	}
}
