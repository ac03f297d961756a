package dashboard

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// gathered are the metrics of one moment, by name.
type gathered map[string]*dto.MetricFamily

// gather reads the metrics; a nil Gatherer has none.
func gather(g prometheus.Gatherer) (gathered, error) {
	if g == nil {
		return nil, nil
	}
	all, err := g.Gather()
	if err != nil {
		return nil, fmt.Errorf("reading the metrics: %w", err)
	}
	out := make(gathered, len(all))
	for _, f := range all {
		out[f.GetName()] = f
	}
	return out, nil
}

// series returns the series of a metric that have all the labels. A label is NAME=VALUE
// or, for several values, NAME=~A|B.
func (g gathered) series(name string, labels ...string) (out []*dto.Metric) {
	for _, m := range g[name].GetMetric() {
		if !slices.ContainsFunc(labels, func(want string) bool { return !carries(m, want) }) {
			out = append(out, m)
		}
	}
	return out
}

func carries(m *dto.Metric, want string) bool {
	name, value, _ := strings.Cut(want, "=")
	values := []string{value}
	if some, ok := strings.CutPrefix(value, "~"); ok {
		values = strings.Split(some, "|")
	}
	return slices.ContainsFunc(m.Label, func(l *dto.LabelPair) bool { return l.GetName() == name && slices.Contains(values, l.GetValue()) })
}

// sum adds up the series of a counter or gauge, and reports whether there is one.
func (g gathered) sum(name string, labels ...string) (v float64, ok bool) {
	for _, m := range g.series(name, labels...) {
		v += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		ok = true
	}
	return v, ok
}

// selector returns a metric with labels in the syntax of Prometheus.
func selector(name string, labels ...string) string {
	if len(labels) == 0 {
		return name
	}
	var all []string
	for _, l := range labels {
		k, v, _ := strings.Cut(l, "=")
		op := "="
		if some, ok := strings.CutPrefix(v, "~"); ok {
			op, v = "=~", some
		}
		all = append(all, fmt.Sprintf("%s%s%q", k, op, v))
	}
	return name + "{" + strings.Join(all, ",") + "}"
}

// figure is a sum as a page shows it; text formats it.
func (g gathered) figure(text func(float64) string, name string, labels ...string) figure {
	v, ok := g.sum(name, labels...)
	if !ok {
		return figure{Text: "–"}
	}
	return number(selector(name, labels...), v, text(v))
}

// quantile is a figure of a histogram, in seconds: the result of Prometheus's
// histogram_quantile over all series.
func (g gathered) quantile(q float64, name string, labels ...string) figure {
	h := histogramOf(g.series(name, labels...))
	v, ok := h.quantile(q)
	if !ok {
		return figure{Text: "–"}
	}
	return number(fmt.Sprintf("histogram_quantile(%v, sum by (le) (%s))", q, selector(name+"_bucket", labels...)), v, duration(v))
}

// histogram is a histogram with fixed buckets.
type histogram struct {
	bounds []float64 // upper bounds, without +Inf
	counts []float64 // at or under each bound
	Total  float64
}

// histogramOf adds up series of the same metric.
func histogramOf(series []*dto.Metric) (h histogram) {
	for _, m := range series {
		buckets := m.GetHistogram().GetBucket()
		if h.bounds == nil {
			for _, b := range buckets {
				if !math.IsInf(b.GetUpperBound(), 1) {
					h.bounds = append(h.bounds, b.GetUpperBound())
				}
			}
			h.counts = make([]float64, len(h.bounds))
		}
		for i := range min(len(h.counts), len(buckets)) {
			h.counts[i] += float64(buckets[i].GetCumulativeCount())
		}
		h.Total += float64(m.GetHistogram().GetSampleCount())
	}
	return h
}

// since returns the observations since an earlier histogram.
func (h histogram) since(was histogram) histogram {
	if len(was.counts) != len(h.counts) { // it had no series yet
		return h
	}
	d := histogram{bounds: h.bounds, counts: make([]float64, len(h.counts)), Total: h.Total - was.Total}
	for i := range h.counts {
		d.counts[i] = h.counts[i] - was.counts[i]
	}
	return d
}

// quantile interpolates like Prometheus's histogram_quantile: values are evenly spread
// in their bucket, and above the last bound the result is the last bound. It is false
// if the histogram is empty.
func (h histogram) quantile(q float64) (float64, bool) {
	if h.Total <= 0 || len(h.bounds) == 0 {
		return 0, false
	}
	rank := q * h.Total
	i := slices.IndexFunc(h.counts, func(n float64) bool { return n >= rank })
	if i < 0 {
		return h.bounds[len(h.bounds)-1], true
	}
	from, below := 0., 0.
	if i > 0 {
		from, below = h.bounds[i-1], h.counts[i-1]
	}
	in := h.counts[i] - below
	if in <= 0 {
		return h.bounds[i], true
	}
	return from + (h.bounds[i]-from)*(rank-below)/in, true
}

// Quantile formats a quantile of times in seconds.
func (h histogram) Quantile(q float64) string {
	v, ok := h.quantile(q)
	if !ok {
		return "–"
	}
	return duration(v)
}
