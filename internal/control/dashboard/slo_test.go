package dashboard_test

import (
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/control/dashboard"
)

// observed returns a registry with a histogram of boots and the gateway's counters.
func observed(t *testing.T, boots ...float64) *prometheus.Registry {
	t.Helper()
	reg := prometheus.NewRegistry()
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "holdfast_session_boot_seconds", Buckets: []float64{1, 2, 4}}, []string{"phase", "outcome"})
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "holdfast_gateway_connects_total"}, []string{"kind"})
	e := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "holdfast_gateway_connect_errors_total"}, []string{"reason"})
	reg.MustRegister(h, c, e)
	for _, b := range boots {
		h.WithLabelValues("total", "ok").Observe(b)
		h.WithLabelValues("create", "ok").Observe(b / 2) // another phase, which does not count
	}
	c.WithLabelValues("request").Add(150)
	c.WithLabelValues("upgrade").Add(50)
	e.WithLabelValues("boot").Add(5)
	e.WithLabelValues("bad_key").Add(7)
	return reg
}

func TestSLOPage(t *testing.T) {
	s := serveWith(t, false, dashboard.Options{Metrics: observed(t, .5, .5, 1.5, 1.5)})
	s.start(t, "alice")
	body := s.get(t, "/slo").body
	for _, want := range []string{
		// The second of four boots is at the end of the first bucket.
		`<data value="1" data-metric="histogram_quantile(0.5, sum by (le) (holdfast_session_boot_seconds_bucket{phase=&#34;total&#34;,outcome=&#34;ok&#34;}))">1.0 s<`,
		`<data value="1.98" data-metric="histogram_quantile(0.99, `,
		`<data value="200" data-metric="holdfast_gateway_connects_total">200<`,
		`{reason=~&#34;boot|`, `">5</data> <span class="hint">2.5 %</span>`,
		`<th scope="row">bad_key</th>`, "no, the client&#39;s fault",
	} {
		if !strings.Contains(body, want) && !strings.Contains(body, strings.ReplaceAll(want, "&#39;", "'")) {
			t.Errorf("the page lacks %s", want)
		}
	}
}

// If nothing was counted, or the agent has no metrics, the page says so and shows no
// number.
func TestSLOPageWithNothing(t *testing.T) {
	body := serveWith(t, false, dashboard.Options{Metrics: prometheus.NewRegistry()}).get(t, "/slo").body
	if strings.Contains(body, "data-metric") || !strings.Contains(body, "–") {
		t.Errorf("nothing was counted, the page is:\n%s", body)
	}
	if body := serve(t, false).get(t, "/slo").body; !strings.Contains(body, "this agent has no metrics") {
		t.Errorf("without metrics the page is:\n%s", body)
	}
}

func TestQuantile(t *testing.T) {
	for _, tt := range []struct {
		q      float64
		counts []float64
		total  float64
		want   float64
		ok     bool
	}{
		{.5, []float64{0, 0, 0}, 0, 0, false},
		{.5, []float64{10, 10, 10}, 10, .5, true},
		{.5, []float64{0, 10, 10}, 10, 1.5, true},
		{.99, []float64{50, 90, 100}, 100, 3.8, true},
		{.99, []float64{1, 1, 1}, 100, 4, true}, // above the last bound
		{1, []float64{2, 2, 2}, 2, 1, true},
	} {
		if v, ok := dashboard.Quantile(tt.q, []float64{1, 2, 4}, tt.counts, tt.total); ok != tt.ok || v < tt.want-1e-9 || v > tt.want+1e-9 {
			t.Errorf("quantile %v of %v of %v is %v, %v; want %v, %v", tt.q, tt.counts, tt.total, v, ok, tt.want, tt.ok)
		}
	}
}

// The alert on failed connects and the page count the same reasons.
func TestFaultsAreTheAlerts(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/prometheus/holdfast.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), `holdfast_gateway_connect_errors_total{reason=~"`+dashboard.Faults+`"}`) {
		t.Errorf("no alert counts %s", dashboard.Faults)
	}
}
