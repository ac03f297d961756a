package deploy

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

const rulesDir = "../../deploy/prometheus"

// alerts are the alert rules.
func alerts(t *testing.T) []alert {
	t.Helper()
	text, err := os.ReadFile(rulesDir + "/holdfast.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []alert
		}
	}
	if err := yaml.UnmarshalWithOptions(text, &file, yaml.AllowDuplicateMapKey()); err != nil {
		t.Fatal(err)
	}
	if len(file.Groups) != 1 || len(file.Groups[0].Rules) < 10 {
		t.Fatalf("%d groups of rules", len(file.Groups))
	}
	return file.Groups[0].Rules
}

type alert struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

// promtool runs promtool in the directory of the rules.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs promtool, which make test installs")
	}
	cmd := exec.CommandContext(t.Context(), "promtool", args...)
	cmd.Dir = rulesDir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// The rules are valid, and fire as holdfast.rules.test.yml requires.
func TestRules(t *testing.T) {
	promtool(t, "check", "rules", "--lint-fatal", "holdfast.rules.yml")
	promtool(t, "test", "rules", "holdfast.rules.test.yml")
}

func TestAlertsAskForWhatThereIs(t *testing.T) {
	all := metrics(t)
	for _, a := range alerts(t) {
		for _, err := range wrong(a.Expr, all) {
			t.Errorf("%s: %v", a.Alert, err)
		}
		if a.Annotations["summary"] == "" || a.Annotations["action"] == "" || a.Labels["severity"] == "" {
			t.Errorf("%s: it has to have a severity, a summary and what to do", a.Alert)
		}
	}
}

// A test of the rules makes each alert fire.
func TestEachAlertIsTested(t *testing.T) {
	text, err := os.ReadFile(rulesDir + "/holdfast.rules.test.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range alerts(t) {
		if !strings.Contains(string(text), "alertname: "+a.Alert+"\n        exp_alerts:\n          - exp_labels:") {
			t.Errorf("%s is not seen to fire", a.Alert)
		}
	}
}

// Markers of the list of alerts in docs/metrics.md.
const (
	alertsBegin = "<!-- generated: UPDATE=1 go test -run TestAlertsPage ./test/deploy -->\n"
	alertsEnd   = "<!-- end of the alerts -->\n"
)

// docs/metrics.md has each alert with its threshold. UPDATE=1 rewrites the list.
func TestAlertsPage(t *testing.T) {
	var b strings.Builder
	b.WriteString("| alert | severity | fires when | for |\n|---|---|---|---|\n")
	for _, a := range alerts(t) {
		when := "`" + strings.ReplaceAll(strings.TrimSpace(a.Expr), "|", "\\|") + "`"
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", a.Alert, a.Labels["severity"], when, a.For)
	}
	text, err := os.ReadFile(metricsPage)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begun := strings.Cut(string(text), alertsBegin)
	_, after, ended := strings.Cut(rest, alertsEnd)
	if !begun || !ended {
		t.Fatalf("%s lacks the two markers of the alerts", metricsPage)
	}
	want := before + alertsBegin + b.String() + alertsEnd + after
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(metricsPage, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want != string(text) {
		t.Errorf("the list of alerts in %s is out of date: UPDATE=1 go test -run TestAlertsPage ./test/deploy", metricsPage)
	}
}
