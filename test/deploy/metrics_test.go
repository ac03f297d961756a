package deploy

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const metricsPage = "../../docs/metrics.md"

// metric is a row of the page. A label without values may have any value.
type metric struct {
	kind   string
	labels map[string][]string
}

var (
	pageRow   = regexp.MustCompile("(?m)^\\| `(holdfast_[a-z0-9_]+)` \\| ([a-z]+) \\| (.*?) \\| ")
	pageLabel = regexp.MustCompile(`\*\*([a-z_]+)\*\*([^;]*)`)
	quoted    = regexp.MustCompile("`([^`]+)`")
)

// metrics returns the metrics of docs/metrics.md by name, and Prometheus's own `up`.
func metrics(t *testing.T) map[string]metric {
	t.Helper()
	text, err := os.ReadFile(metricsPage)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]metric{"up": {kind: "gauge"}}
	for _, row := range pageRow.FindAllStringSubmatch(string(text), -1) {
		m := metric{kind: row[2], labels: map[string][]string{}}
		for _, l := range pageLabel.FindAllStringSubmatch(row[3], -1) {
			m.labels[l[1]] = nil
			for _, v := range quoted.FindAllStringSubmatch(l[2], -1) {
				m.labels[l[1]] = append(m.labels[l[1]], v[1])
			}
		}
		all[row[1]] = m
	}
	if len(all) < 40 {
		t.Fatalf("%s has only %d metrics", metricsPage, len(all))
	}
	return all
}

var (
	selector = regexp.MustCompile(`\b(up|holdfast_[a-z0-9_]+)(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"`)
	grouping = regexp.MustCompile(`\bby \(([^)]*)\)`)
)

// wrong returns the parts of a query that no agent has.
func wrong(expr string, all map[string]metric) (errs []error) {
	had := []string{"job", "instance", "le"}
	found := selector.FindAllStringSubmatch(expr, -1)
	if len(found) == 0 {
		return []error{fmt.Errorf("there is no metric in %s", expr)}
	}
	for _, s := range found {
		m, ok := lookUp(s[1], all)
		if !ok {
			errs = append(errs, fmt.Errorf("there is no metric %s", s[1]))
			continue
		}
		for l := range m.labels {
			had = append(had, l)
		}
		for _, x := range matcher.FindAllStringSubmatch(s[2], -1) {
			errs = append(errs, wrongMatch(s[1], m, x[1], x[2])...)
		}
	}
	for _, g := range grouping.FindAllStringSubmatch(expr, -1) {
		for l := range strings.SplitSeq(g[1], ",") {
			if l = strings.TrimSpace(l); !slices.Contains(had, l) {
				errs = append(errs, fmt.Errorf("no metric in there has the label %s: %s", l, expr))
			}
		}
	}
	return errs
}

func wrongMatch(name string, m metric, label, value string) (errs []error) {
	values, ok := m.labels[label]
	if !ok && label != "job" && label != "instance" {
		return []error{fmt.Errorf("%s has no label %s", name, label)}
	}
	if len(values) == 0 {
		return nil
	}
	for v := range strings.SplitSeq(value, "|") {
		if !slices.Contains(values, v) {
			errs = append(errs, fmt.Errorf("%s is never with %s=%q", name, label, v))
		}
	}
	return errs
}

// lookUp finds a metric by the name of one of its series.
func lookUp(series string, all map[string]metric) (metric, bool) {
	if m, ok := all[series]; ok {
		return m, m.kind != "histogram" // the series of a histogram have suffixes
	}
	for _, end := range []string{"_bucket", "_sum", "_count"} {
		if name, ok := strings.CutSuffix(series, end); ok {
			m, ok := all[name]
			return m, ok && m.kind == "histogram"
		}
	}
	return metric{}, false
}

// The check fails for wrong queries.
func TestWrongQueriesAreFound(t *testing.T) {
	all := metrics(t)
	for expr, want := range map[string]int{
		`sum by (instance, kind) (rate(holdfast_gateway_connects_total{job="holdfast"}[5m]))`:   0,
		`histogram_quantile(0.9, sum by (le) (rate(holdfast_gateway_park_seconds_bucket[5m])))`: 0,
		`holdfast_kills_total{outcome=~"dead|left"} > 0 and up == 1`:                            0,
		`vector(1)`:                                         1,
		`holdfast_gateway_connect_total`:                    1,
		`holdfast_gateway_park_seconds`:                     1,
		`holdfast_kills_total_count`:                        1,
		`holdfast_kills_total{result="left"}`:               1,
		`holdfast_kills_total{outcome=~"left|lost"}`:        1,
		`sum by (reason) (holdfast_kills_total)`:            1,
		`up{reason="x"} + holdfast_fleet_sessions{node=""}`: 2,
	} {
		if got := wrong(expr, all); len(got) != want {
			t.Errorf("%s: %v, want %d mistakes", expr, got, want)
		}
	}
}
