package agent

import (
	"fmt"
	"html"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Every figure on a page that names a metric is what /metrics says.
func TestPagesSayWhatTheMetricsSay(t *testing.T) {
	h := newHost(t, "")
	h.start()
	h.open("alice")
	h.open("bob")
	for page, least := range map[string]int{"/": 5, "/sessions": 4} {
		var wrong []string
		for limit := time.Now().Add(time.Minute); ; time.Sleep(300 * time.Millisecond) {
			before := h.families()
			figures := h.figures(page)
			if len(figures) < least {
				t.Fatalf("%s has %d figures, at least %d are expected", page, len(figures), least)
			}
			wrong = wrong[:0]
			for selector, shown := range figures {
				// The loads change: the page may be of a moment before the metrics.
				if want, ok := total(before, selector); !ok || want != shown {
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

// figures are a page's, by the metrics that they name.
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

// total is the sum of a metric's series with the selector's labels; node is the
// one that was asked.
func total(all map[string]*dto.MetricFamily, selector string) (sum float64, ok bool) {
	name, rest, _ := strings.Cut(selector, "{")
	f := all[name]
	if f == nil {
		return 0, false
	}
	want := map[string]string{}
	for _, m := range regexp.MustCompile(`(\w+)="([^"]*)"`).FindAllStringSubmatch(rest, -1) {
		want[m[1]] = m[2]
	}
	delete(want, "node")
	for _, m := range f.Metric {
		fits := 0
		for _, l := range m.Label {
			if v, asked := want[l.GetName()]; asked && v == l.GetValue() {
				fits++
			}
		}
		if fits == len(want) {
			ok = true
			sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return sum, ok
}
