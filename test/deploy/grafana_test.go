package deploy

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

type rect struct{ H, W, X, Y int }

type panel struct {
	ID          int
	Type, Title string
	GridPos     rect
	Targets     []struct{ Expr string }
}

type dashboard struct {
	UID        string
	Panels     []panel
	Templating struct {
		List []struct{ Name, Definition string }
	}
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	text, err := os.ReadFile("../../deploy/grafana/holdfast.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	if d.UID == "" || len(d.Panels) < 20 {
		t.Fatalf("dashboard %q has %d panels", d.UID, len(d.Panels))
	}
	return d
}

// Every query of the dashboard is valid, and uses metrics of an agent.
func TestDashboardAsksForWhatThereIs(t *testing.T) {
	all, d := metrics(t), readDashboard(t)
	variables := strings.NewReplacer("$__rate_interval", "5m", "$job", ".*", "$instance", ".*")
	type rule struct{ Record, Expr string }
	var rules []rule
	for _, p := range d.Panels {
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("%s shows nothing", p.Title)
		}
		for _, q := range p.Targets {
			expr := variables.Replace(q.Expr)
			if strings.Contains(expr, "$") {
				t.Errorf("%s: the dashboard has no variable of this name: %s", p.Title, expr)
			}
			for _, err := range wrong(expr, all) {
				t.Errorf("%s: %v", p.Title, err)
			}
			rules = append(rules, rule{fmt.Sprintf("q%d", len(rules)), expr})
		}
	}
	for _, v := range d.Templating.List {
		if q, ok := strings.CutPrefix(v.Definition, "label_values("); ok {
			for _, err := range wrong(variables.Replace(q), all) {
				t.Errorf("variable %s: %v", v.Name, err)
			}
		}
	}
	text, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "dashboard.yml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", file)
}

// Panels have unique ids and do not overlap.
func TestDashboardIsInOrder(t *testing.T) {
	ids := map[int]string{}
	d := readDashboard(t)
	for i, p := range d.Panels {
		if other, twice := ids[p.ID]; twice {
			t.Errorf("%s and %s have the id %d", p.Title, other, p.ID)
		}
		ids[p.ID] = p.Title
		g := p.GridPos
		if g.W < 1 || g.H < 1 || g.X < 0 || g.X+g.W > 24 {
			t.Errorf("%s: %+v is beyond the 24 columns", p.Title, g)
		}
		for _, q := range d.Panels[:i] {
			o := q.GridPos
			if g.X < o.X+o.W && o.X < g.X+g.W && g.Y < o.Y+o.H && o.Y < g.Y+g.H {
				t.Errorf("%s lies on %s", p.Title, q.Title)
			}
		}
	}
}
