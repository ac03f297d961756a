package browser

import (
	_ "embed"
	"testing"

	"github.com/chromedp/chromedp"
)

// axe is axe-core, which looks for what keeps people from using a page. It is
// for tests only, and in no program of ours.
//
//go:embed axe/axe.min.js
var axe string

// Violation is a rule that a page breaks.
type Violation struct {
	ID     string `json:"id"`
	Impact string `json:"impact"` // minor, moderate, serious, critical
	Help   string `json:"help"`
	Where  string `json:"where"` // the elements' selectors
}

// Usable fails the test for every rule that the page breaks with at least
// moderate harm: those of WCAG 2.2 A and AA, and good practice.
func (p *Page) Usable(t testing.TB, name string) {
	t.Helper()
	for _, v := range p.Violations(t) {
		if v.Impact != "minor" {
			t.Errorf("%s: %s (%s): %s, at %s", name, v.ID, v.Impact, v.Help, v.Where)
		}
	}
}

// Violations lists the rules that the page breaks.
func (p *Page) Violations(t testing.TB) []Violation {
	t.Helper()
	if !Eval[bool](t, p, "!!window.axe") {
		// By the debugger, which the page's policy does not hold.
		Eval[bool](t, p, axe+";true")
	}
	run := `axe.run({resultTypes: ["violations"]}).then(r => r.violations.map(v =>
		({id: v.id, impact: v.impact, help: v.help, where: v.nodes.slice(0, 3).map(n => n.target.join(" ") + " " + (n.any[0]?.message ?? "")).join("; ")})))`
	v, err := chromedp.Run(p.ctx, chromedp.Evaluate[[]Violation](run, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatalf("look for barriers: %v", err)
	}
	return v
}
