package bench

import (
	"fmt"
	"html/template"
	"math"
	"os"
	"time"
)

// The plot's measures, in pixels.
const (
	plotWidth  = 900
	plotHeight = 140
)

// plotRow is the plot of one way: latency over time, on a logarithmic scale from 10 ms
// to 10 s.
type plotRow struct {
	Name       string
	Note       string
	From, Wide float64 // start and width of the collection
	Dots       []plotDot
	Lines      []plotLine
}

type plotDot struct {
	X, Y  float64
	Slow  bool
	Title string
}

type plotLine struct {
	Y    float64
	Text string
}

var plotPage = template.Must(template.New("plot").Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Creates while images are removed</title>
<style>
body{font:15px/1.4 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
h1{font-size:1.3rem} h2{font-size:1rem;margin:1.2rem 0 .2rem} p{margin:.2rem 0;color:#555}
svg{width:100%;height:auto;background:#f7f7f7} text{font-size:10px;fill:#777}
.run{fill:#f4d9a8} .line{stroke:#ddd} circle{fill:#2563a8} .slow{fill:#c02626}
</style>
<h1>Creates at a fixed rate while images are removed</h1>
<p>{{.Machine.Model}}, {{.Machine.CPUs}} CPUs, Linux {{.Machine.Kernel}}, {{.Machine.Engine}}. Each dot is a create. The x axis is the time at which the create was due, the y axis its latency from then. Red dots are over 1 s. The background is yellow while images are removed.</p>
{{range .Rows}}<h2>{{.Name}}</h2><p>{{.Note}}</p>
<svg viewBox="0 0 {{$.Width}} {{$.Height}}" role="img" aria-label="{{.Name}}: {{.Note}}">
<rect class="run" x="{{.From}}" y="0" width="{{.Wide}}" height="{{$.Height}}"/>
{{range .Lines}}<line class="line" x1="0" x2="{{$.Width}}" y1="{{.Y}}" y2="{{.Y}}"/><text x="2" y="{{.Y}}" dy="-2">{{.Text}}</text>
{{end}}{{range .Dots}}<circle{{if .Slow}} class="slow"{{end}} cx="{{.X}}" cy="{{.Y}}" r="2"><title>{{.Title}}</title></circle>
{{end}}</svg>
{{end}}</html>
`))

// writePlot writes the latencies of all rounds as an HTML page.
func writePlot(path string, m Machine, rounds []gcRound) (err error) {
	longest := time.Second
	for _, r := range rounds {
		for _, s := range r.samples {
			longest = max(longest, s.at)
		}
		longest = max(longest, r.to)
	}
	x := func(d time.Duration) float64 { return math.Round(float64(d)/float64(longest)*plotWidth*10) / 10 }
	var rows []plotRow
	for _, r := range rounds {
		row := plotRow{Name: r.name, Note: r.note(), From: x(r.from), Wide: x(r.to) - x(r.from)}
		for _, d := range []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, time.Second, 10 * time.Second} {
			row.Lines = append(row.Lines, plotLine{plotY(d), d.String()})
		}
		for _, s := range r.samples {
			row.Dots = append(row.Dots, plotDot{x(s.at), plotY(s.took), s.took > slowCreate, fmt.Sprintf("%.0f ms", millis(s.took))})
		}
		rows = append(rows, row)
	}
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write the plot: %w", err)
	}
	if err := plotPage.Execute(f, map[string]any{"Machine": m, "Rows": rows, "Width": plotWidth, "Height": plotHeight}); err != nil {
		f.Close()
		return fmt.Errorf("write the plot: %w", err)
	}
	return f.Close()
}

// plotY returns the y coordinate of a latency: three decades over the whole height.
func plotY(d time.Duration) float64 {
	share := (math.Log10(max(d.Seconds(), 0.01)) + 2) / 3
	return math.Round((1-min(share, 1))*(plotHeight-10)*10)/10 + 5
}
