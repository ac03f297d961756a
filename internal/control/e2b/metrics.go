package e2b

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/platform/metric"
)

// Metrics are the metrics of a server.
type Metrics struct {
	requests  *prometheus.CounterVec
	ended     *prometheus.CounterVec
	posted    *prometheus.CounterVec
	sandboxes prometheus.Gauge
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := metric.Registry{Registerer: r}
	f := &Metrics{
		requests:  m.CounterVec("holdfast_e2b_requests_total", "Requests of E2B's SDKs, and of clients to ports of sandboxes, by what they were for and their result: ok; refused, with a status below 500; failed.", "for", "result"),
		ended:     m.CounterVec("holdfast_e2b_timeouts_total", "Sandboxes whose time was over, by what happened to them: killed, paused, failed.", "result"),
		posted:    m.CounterVec("holdfast_e2b_webhooks_total", "Events of sandboxes for webhooks, by result: ok; unwanted, because the webhook was changed or removed meanwhile; failed, after all attempts; lost, because too many waited, the agent ended, or the store did not answer.", "result"),
		sandboxes: m.Gauge("holdfast_e2b_sandboxes", "Sandboxes of E2B's SDKs that this node knows, of all nodes of its fleet."),
	}
	for _, what := range []string{"control", "sandbox", "port"} {
		for _, result := range []string{"ok", "refused", "failed"} {
			f.requests.WithLabelValues(what, result)
		}
	}
	metric.Start(f.ended, "killed", "paused", "failed")
	metric.Start(f.posted, "ok", "unwanted", "failed", "lost")
	return f
}

// of counts one answer.
func (f *Metrics) of(what string, w http.ResponseWriter) http.ResponseWriter {
	return &counted{ResponseWriter: w, f: f, what: what}
}

type counted struct {
	http.ResponseWriter
	f    *Metrics
	what string
	done bool
}

// Unwrap serves http.ResponseController.
func (c *counted) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// Flush implements http.Flusher, which connect looks for.
func (c *counted) Flush() { _ = http.NewResponseController(c.ResponseWriter).Flush() }

func (c *counted) WriteHeader(status int) {
	if !c.done && (status >= 200 || status == http.StatusSwitchingProtocols) {
		c.done = true
		result := "ok"
		switch {
		case status >= 500:
			result = "failed"
		case status >= 400:
			result = "refused"
		}
		c.f.requests.WithLabelValues(c.what, result).Inc()
	}
	c.ResponseWriter.WriteHeader(status)
}

func (c *counted) Write(b []byte) (int, error) {
	if !c.done {
		c.WriteHeader(http.StatusOK)
	}
	return c.ResponseWriter.Write(b)
}
