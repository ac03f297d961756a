package browser

import (
	_ "embed"
	"testing"

	"github.com/chromedp/chromedp"
)

// axe is axe-core, which finds accessibility problems of a page. Only tests use it.
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

// Usable fails the test for every violation with an impact of moderate or above: rules of
// WCAG 2.2 A and AA, and best practices.
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
		// By the debugger, to which the page's content policy does not apply.
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
