package agent

import (
	"fmt"
	"html"
	"io"
	"maps"
	"math"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Every figure on a page that names a metric equals the value in /metrics.
func TestPagesSayWhatTheMetricsSay(t *testing.T) {
	h := newHost(t, "doctor: {enabled: true}\n")
	h.start()
	h.open("alice")
	h.open("bob")
	for page, least := range map[string]int{"/": 5, "/sessions": 4, "/slo": 5, "/spinup": 10, "/gc": 4, "/protect": 19, "/doctor": 1} {
		var wrong []string
		for limit := time.Now().Add(time.Minute); ; time.Sleep(300 * time.Millisecond) {
			before := h.families()
			figures := h.figures(page)
			wrong = wrong[:0]
			if len(figures) < least { // the page may be older than the metrics
				wrong = append(wrong, fmt.Sprintf("there are %d figures, at least %d are expected", len(figures), least))
			}
			for selector, shown := range figures {
				// The loads change, and the page may be older than the metrics.
				if want, ok := evaluate(h.t, before, selector); !ok || math.Abs(want-shown) > 1e-9*math.Abs(want) {
					wrong = append(wrong, fmt.Sprintf("%s is %v on the page, %v as a metric (there: %v)", selector, shown, want, ok))
				}
			}
			if len(wrong) == 0 {
				break
			}
			if time.Now().After(limit) {
				t.Errorf("%s: %s", page, strings.Join(wrong, "; "))
				break
			}
		}
	}
	if n := h.figures("/sessions")[`holdfast_node_sessions{state="ready"}`]; n != 2 {
		t.Errorf("%v sessions are ready on the page, 2 are", n)
	}
	if r, err := http.Get("http://" + h.apiTCP + "/sessions/alice/open"); err != nil || !strings.HasSuffix(r.Request.URL.Path, "/s/alice/") || r.StatusCode != http.StatusOK {
		t.Errorf("opening a session from its page: %v, %v", r, err)
	} else {
		r.Body.Close()
	}
}

// With the pages disabled, the API and the metrics answer; pages and login do not.
func TestNoPages(t *testing.T) {
	h := newHost(t, "")
	text, err := os.ReadFile(h.configFile())
	if err == nil {
		err = os.WriteFile(h.configFile(), []byte(strings.Replace(string(text), "api: {", "api: {dashboard: false, ", 1)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	h.start()
	for path, want := range map[string]int{"/": 404, "/sessions": 404, "/login": 404, "/live/fleet": 404, "/v1/sessions": 200, "/metrics": 200} {
		r, err := http.Get("http://" + h.apiTCP + path)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if r.StatusCode != want {
			t.Errorf("%s: status %d, want %d", path, r.StatusCode, want)
		}
	}
}

// figures returns the figures of a page, by the metrics that they name.
func (h *host) figures(page string) map[string]float64 {
	h.t.Helper()
	r, err := http.Get("http://" + h.apiTCP + page)
	if err != nil {
		h.t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		h.t.Fatalf("%s: status %d, %v", page, r.StatusCode, err)
	}
	out := map[string]float64{}
	for _, m := range regexp.MustCompile(`<data value="([^"]*)" data-metric="([^"]*)">`).FindAllStringSubmatch(string(b), -1) {
		v, err := strconv.ParseFloat(html.UnescapeString(m[1]), 64)
		if err != nil {
			h.t.Fatal(err)
		}
		out[html.UnescapeString(m[2])] = v
	}
	return out
}

func (h *host) families() map[string]*dto.MetricFamily {
	h.t.Helper()
	r, err := http.Get("http://" + h.apiTCP + "/metrics")
	if err != nil {
		h.t.Fatal(err)
	}
	defer r.Body.Close()
	p := expfmt.NewTextParser(model.UTF8Validation)
	all, err := p.TextToMetricFamilies(r.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return all
}

// evaluate returns the value of a metric, or of a quantile of a histogram. It supports the
// part of PromQL that the pages use.
func evaluate(t *testing.T, all map[string]*dto.MetricFamily, expression string) (float64, bool) {
	t.Helper()
	m := regexp.MustCompile(`^histogram_quantile\(([0-9.]+), sum by \(le\) \((\w+)_bucket(.*)\)\)$`).FindStringSubmatch(expression)
	if m == nil {
		return total(all, expression)
	}
	q, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	counts := map[float64]float64{}
	for _, s := range series(all, m[2]+m[3]) {
		for _, b := range s.GetHistogram().GetBucket() {
			counts[b.GetUpperBound()] += float64(b.GetCumulativeCount())
		}
	}
	bounds := slices.Sorted(maps.Keys(counts))
	if len(bounds) < 2 || counts[math.Inf(1)] == 0 {
		return 0, false
	}
	rank, low, below := q*counts[math.Inf(1)], 0., 0.
	for _, b := range bounds {
		switch n := counts[b]; {
		case n < rank:
			low, below = b, n
		case math.IsInf(b, 1):
			return low, true
		default:
			return low + (b-low)*(rank-below)/(n-below), true
		}
	}
	return 0, false
}

// total returns the sum of a metric's series with the selector's labels.
func total(all map[string]*dto.MetricFamily, selector string) (sum float64, ok bool) {
	for _, m := range series(all, selector) {
		ok = true
		sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
	}
	return sum, ok
}

// series returns the series of a metric with the selector's labels; node is the scraped
// node.
func series(all map[string]*dto.MetricFamily, selector string) (out []*dto.Metric) {
	name, rest, _ := strings.Cut(selector, "{")
	want := map[string]*regexp.Regexp{}
	for _, m := range regexp.MustCompile(`(\w+)(=~?)"([^"]*)"`).FindAllStringSubmatch(rest, -1) {
		if m[2] == "=" {
			m[3] = regexp.QuoteMeta(m[3])
		}
		want[m[1]] = regexp.MustCompile("^(?:" + m[3] + ")$")
	}
	delete(want, "node")
	for _, m := range all[name].GetMetric() {
		fits := 0
		for _, l := range m.Label {
			if v, asked := want[l.GetName()]; asked && v.MatchString(l.GetValue()) {
				fits++
			}
		}
		if fits == len(want) {
			out = append(out, m)
		}
	}
	return out
}
