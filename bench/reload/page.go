package reload

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"

	"holdfast/bench"
)

//go:embed page.html
var pageText string

// pageRun is a run as the page shows it.
type pageRun struct {
	*Run
	Name    string
	Reasons []Reason
	Plot    *Plot // nil where the run was skipped
}

// writePage writes the report as one HTML file that needs no other.
func writePage(w io.Writer, res bench.Result, d Details) error {
	t, err := template.New("page").Funcs(template.FuncMap{
		"ms":    func(v float64) string { return fmt.Sprintf("%.1f", v) },
		"shade": func(i int) string { return [len(shades)]string{"0.5", "0.75", "1"}[i] },
	}).Parse(pageText)
	if err != nil {
		return err
	}
	m := res.Machine
	page := struct {
		Machine, HAProxy, Summary string
		Rate                      float64
		Notes                     []string
		Runs                      []pageRun
	}{
		Machine: fmt.Sprintf("%d CPUs (%s), %.1f GiB, Linux %s", m.CPUs, m.Model, float64(m.Memory)/(1<<30), m.Kernel),
		HAProxy: d.HAProxy, Rate: d.Rate, Notes: res.Notes,
		Summary: fmt.Sprintf("score %.2f, failed %d", res.Score, res.Failed),
	}
	for _, r := range d.Runs {
		p := pageRun{Run: r, Name: r.Name(), Reasons: r.reasons()}
		if r.rec != nil {
			plot := plotOf(r.rec, r.changes)
			p.Plot = &plot
		}
		page.Runs = append(page.Runs, p)
	}
	return t.Execute(w, page)
}
