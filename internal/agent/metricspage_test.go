package agent

import (
	"bytes"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"holdfast/internal/agent/execnode"
	"holdfast/internal/agent/filenode"
	"holdfast/internal/agent/handoff"
	"holdfast/internal/agent/portnode"
	"holdfast/internal/agent/process"
	"holdfast/internal/control/config"
	"holdfast/internal/control/e2b"
	"holdfast/internal/hosts/kube/evacuate"
	"holdfast/internal/hosts/kube/node"
	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/history"
	"holdfast/internal/hosts/spinup/experiment"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/metric"
	"holdfast/internal/sessions/drain"
	"holdfast/internal/sessions/events"
	"holdfast/internal/sessions/fleet"
	"holdfast/internal/sessions/gateway"
	"holdfast/internal/sessions/group"
	"holdfast/internal/sessions/move"
	"holdfast/internal/sessions/pool/network"
	"holdfast/internal/sessions/preempt"
	"holdfast/internal/sessions/runtimes"
	"holdfast/internal/sessions/session"
)

const metricsPage = "../../docs/metrics.md"

// recording is a registry that lists its collectors. A metric with labels is exported only
// with a value for each label, so fill sets one.
type recording struct {
	*prometheus.Registry
	all []prometheus.Collector
}

func (r *recording) Register(c prometheus.Collector) error {
	r.all = append(r.all, c)
	return r.Registry.Register(c)
}

func (r *recording) MustRegister(all ...prometheus.Collector) {
	r.all = append(r.all, all...)
	r.Registry.MustRegister(all...)
}

// variables finds the labels in the text of a prometheus.Desc, which has no method that
// returns them.
var variables = regexp.MustCompile(`variableLabels: \{([^}]*)\}`)

// fill creates one metric in each vector.
func (r *recording) fill(t *testing.T) {
	t.Helper()
	for _, c := range r.all {
		described := make(chan *prometheus.Desc, 100)
		c.Describe(described)
		close(described)
		var labels []string
		if m := variables.FindStringSubmatch(fmt.Sprint(<-described)); m != nil && m[1] != "" {
			labels = strings.Split(m[1], ",")
		}
		var err error
		switch v := c.(type) {
		case *prometheus.CounterVec:
			_, err = v.GetMetricWithLabelValues(labels...)
		case *prometheus.GaugeVec:
			_, err = v.GetMetricWithLabelValues(labels...)
		case *prometheus.HistogramVec:
			_, err = v.GetMetricWithLabelValues(labels...)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// registered returns the metrics of an agent in a fleet, registered in the agent's way.
func registered(t *testing.T) *recording {
	t.Helper()
	c := config.Default()
	c.DataDir, c.RunDir = t.TempDir(), t.TempDir()
	c.Templates = []config.Template{{Name: "template", Image: "image", Port: 80, Warm: 1}} // labelsOf leaves out a value that is the label's name
	log := slog.New(slog.DiscardHandler)
	u, err := handoff.NewUpgrades("v1", nil, log)
	if err != nil {
		t.Fatal(err)
	}
	a := newAgent(c, Options{Log: log}, nil, u)
	r := &recording{Registry: process.NewRegistry()}
	a.metrics = r
	drain.NewMetrics(r)
	preempt.NewMetrics(r)
	locks := t.TempDir()
	if err := history.Add(locks, history.Hold{At: time.Now(), Backend: protect.Plug, Reason: protect.NewListens}); err != nil {
		t.Fatal(err)
	}
	r.MustRegister(history.NewMetrics(locks, log))
	u.Register(r)
	a.spinups = a.newSpinups(engine.Info{Name: "docker", Version: "1"})
	a.newCollector(nil)
	if a.newDoctor(nil) == nil {
		t.Fatal("the doctor is off by default")
	}
	session.NewRestores(nil, "", 0, r, log)
	a.sessions = session.New(session.Config{}, session.Deps{Metrics: session.NewMetrics(r), Log: log})
	events.Open(c.DataDir, "n1", metric.Registry{Registerer: r}, log)
	a.registerNodeFigures()
	network.New(network.Config{}, network.Deps{Metrics: network.NewMetrics(r), Log: log})
	r.MustRegister(upkeepMetric(nil))
	a.works = runtimes.New(nil, false, nil, r, log)
	a.newWarmPool(nil)
	move.RegisterMetrics(r, moveOptions(a))
	fleet.NewMetrics(r)
	group.NewMetrics(r)
	experiment.New(experiment.Config{Specs: []experiment.Spec{{Name: "x"}}}, experiment.Deps{Metrics: r})
	gateway.NewMetrics(r)
	if _, err := execnode.New(c, nil, nil, nil, r, log); err != nil {
		t.Fatal(err)
	}
	filenode.New(nil, nil, nil, r)
	portnode.New(nil, r)
	e2b.NewMetrics(r)
	node.NewMetrics(r)
	evacuate.NewMetrics(r)
	r.fill(t)
	return r
}

// metricsTable returns the table of docs/metrics.md.
func metricsTable(t *testing.T, r *recording) string {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("| metric | type | labels | meaning |\n|---|---|---|---|\n")
	n := 0
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "holdfast_") {
			continue
		}
		n++
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.GetName(), strings.ToLower(f.GetType().String()), labelsOf(f), f.GetHelp())
	}
	if n < 40 {
		t.Fatalf("only %d metrics", n)
	}
	return b.String()
}

// labelsOf returns the labels of a metric, with their initial values.
func labelsOf(f *dto.MetricFamily) string {
	values := map[string]map[string]bool{}
	for _, m := range f.GetMetric() {
		for _, l := range m.GetLabel() {
			if values[l.GetName()] == nil {
				values[l.GetName()] = map[string]bool{}
			}
			// The values of fill are placeholders, and those of a build change with each
			// build.
			if l.GetValue() != l.GetName() && f.GetName() != "holdfast_build_info" {
				values[l.GetName()]["`"+l.GetValue()+"`"] = true
			}
		}
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(values)) {
		words := "**" + name + "**"
		if v := slices.Sorted(maps.Keys(values[name])); len(v) > 0 {
			words += ": " + strings.Join(v, " ")
		}
		out = append(out, words)
	}
	return strings.Join(out, "; ")
}

// Markers of the part of docs/metrics.md that is generated.
const (
	tableBegin = "<!-- generated: UPDATE=1 go test -run TestMetricsPage ./internal/agent -->\n"
	tableEnd   = "<!-- end of what is generated -->\n"
)

// docs/metrics.md has each metric of an agent, with its type, its labels and its
// meaning (UPDATE=1 writes it again).
func TestMetricsPage(t *testing.T) {
	table := metricsTable(t, registered(t))
	b, err := os.ReadFile(metricsPage)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begun := strings.Cut(string(b), tableBegin)
	_, after, ended := strings.Cut(rest, tableEnd)
	if !begun || !ended {
		t.Fatalf("%s lacks a marker of the generated part", metricsPage)
	}
	want := before + tableBegin + table + tableEnd + after
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(metricsPage, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want != string(b) {
		t.Errorf("%s differs from the metrics that an agent registers: UPDATE=1 go test -run TestMetricsPage ./internal/agent", metricsPage)
	}
}

// metricName matches a literal in Go that may be the name of a metric, or its beginning.
var metricName = regexp.MustCompile(`"(holdfast_[a-z0-9_]+)"`)

// otherNames begin like the name of a metric, and name other things.
var otherNames = []string{"holdfast_token", "holdfast_login", "holdfast_recording"} // cookies, and a label of profiles

// The page has every name of a metric in the product's code: registered above omits no part
// of the agent.
func TestMetricsPageIsComplete(t *testing.T) {
	b, err := os.ReadFile(metricsPage)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	err = filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range metricName.FindAllStringSubmatch(string(text), -1) {
			if slices.Contains(otherNames, m[1]) {
				continue
			}
			found++
			if !strings.Contains(string(b), "| `"+m[1]) {
				t.Errorf("%s: %s is not in %s", path, m[1], metricsPage)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 40 {
		t.Errorf("only %d names were found", found)
	}
}

// Names and help texts follow the conventions of Prometheus.
func TestMetricsPassPromtool(t *testing.T) {
	if testing.Short() {
		t.Skip("needs promtool, which make test installs")
	}
	page := httptest.NewRecorder()
	promhttp.HandlerFor(registered(t), promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	if !bytes.Contains(page.Body.Bytes(), []byte("# TYPE holdfast_gateway_park_seconds histogram")) {
		t.Fatalf("no exposition:\n%s", page.Body)
	}
	cmd := exec.CommandContext(t.Context(), "promtool", "check", "metrics")
	cmd.Stdin = page.Body
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}
