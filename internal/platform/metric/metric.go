// Package metric creates and registers Prometheus metrics, one call for each:
//
//	r := metric.Registry{Registerer: registerer}
//	requests := r.CounterVec("requests_total", "Requests, by result.", "result")
//	metric.Start(requests, "ok", "failed")
//
// The methods panic if a metric of the name is registered already. Any goroutine may call
// them.
package metric

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Registry registers the metrics that it creates.
type Registry struct{ prometheus.Registerer }

// Counter creates a counter.
func (r Registry) Counter(name, help string) prometheus.Counter {
	return promauto.With(r).NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

// CounterVec creates counters with labels.
func (r Registry) CounterVec(name, help string, labels ...string) *prometheus.CounterVec {
	return promauto.With(r).NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

// Gauge creates a gauge.
func (r Registry) Gauge(name, help string) prometheus.Gauge {
	return promauto.With(r).NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
}

// GaugeVec creates gauges with labels.
func (r Registry) GaugeVec(name, help string, labels ...string) *prometheus.GaugeVec {
	return promauto.With(r).NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
}

// GaugeFunc creates a gauge whose value is read at each scrape. Any goroutine may call
// value.
func GaugeFunc[N int | int64 | float64](r Registry, name, help string, value func() N) {
	promauto.With(r).NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
}

// HistogramVec creates histograms with labels. The upper bounds of the buckets ascend.
func (r Registry) HistogramVec(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return promauto.With(r).NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
}

// Histogram creates a histogram.
func (r Registry) Histogram(name, help string, buckets []float64) prometheus.Histogram {
	return promauto.With(r).NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
}

// NativeHistogram creates a histogram that also has native buckets, at most 100, for
// servers that read them.
func (r Registry) NativeHistogram(name, help string, buckets []float64) prometheus.Histogram {
	return promauto.With(r).NewHistogram(prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: buckets, NativeHistogramBucketFactor: 1.1,
		NativeHistogramMaxBucketNumber: 100, NativeHistogramMinResetDuration: time.Hour,
	})
}

// Start creates the metrics of values of the only label. A counter then is 0 before its
// first increment, so that rate() sees that one.
func Start[M any](vec interface{ WithLabelValues(...string) M }, values ...string) {
	for _, v := range values {
		vec.WithLabelValues(v)
	}
}
