package dashboard

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// gathered are the metrics of one moment, by name.
type gathered map[string]*dto.MetricFamily

// gather reads them; a nil Gatherer has none.
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

// metrics are those of about now.
func (d *Dashboard) metrics(ctx context.Context) (gathered, error) { return d.gathered.get(ctx) }

// series are those of a metric that have all the labels, each NAME=VALUE or, for
// one of several values, NAME=~A|B.
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

// sum adds the series of a counter or gauge up, and says whether there is one.
func (g gathered) sum(name string, labels ...string) (v float64, ok bool) {
	for _, m := range g.series(name, labels...) {
		v += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		ok = true
	}
	return v, ok
}

// selector is a metric with labels as Prometheus writes them.
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

// figure is a sum as a page shows it; text says how people read it.
func (g gathered) figure(text func(float64) string, name string, labels ...string) figure {
	v, ok := g.sum(name, labels...)
	if !ok {
		return figure{Text: "–"}
	}
	return number(selector(name, labels...), v, text(v))
}

// quantile is a figure of a histogram: what Prometheus's histogram_quantile says
// of all series together, as seconds.
func (g gathered) quantile(q float64, name string, labels ...string) figure {
	h := histogramOf(g.series(name, labels...))
	v, ok := h.quantile(q)
	if !ok {
		return figure{Text: "–"}
	}
	return number(fmt.Sprintf("histogram_quantile(%v, sum by (le) (%s))", q, selector(name+"_bucket", labels...)), v, duration(v))
}

// histogram is one of a fixed set of buckets.
type histogram struct {
	bounds []float64 // upper ones, without +Inf
	counts []float64 // at or under each
	total  float64
}

// histogramOf adds series of the same metric up.
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
		h.total += float64(m.GetHistogram().GetSampleCount())
	}
	return h
}

// since is what has come since an earlier moment.
func (h histogram) since(was histogram) histogram {
	if len(was.counts) != len(h.counts) { // it had no series yet
		return h
	}
	d := histogram{bounds: h.bounds, counts: make([]float64, len(h.counts)), total: h.total - was.total}
	for i := range h.counts {
		d.counts[i] = h.counts[i] - was.counts[i]
	}
	return d
}

// quantile is that of histogram_quantile in Prometheus's documentation: as if
// values lay evenly in their bucket; over the last bound it is the last bound.
// False where nothing was counted.
func (h histogram) quantile(q float64) (float64, bool) {
	if h.total <= 0 || len(h.bounds) == 0 {
		return 0, false
	}
	rank := q * h.total
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
