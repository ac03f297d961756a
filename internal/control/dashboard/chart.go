package dashboard

import "math"

// chart is a row of bars. The server makes it as SVG: it needs no script, is part of
// the page and its updates, uses the colours of the page's style, and has a few bytes
// for each bar. A table beside it has the same numbers.
type chart struct {
	Title, Note string
	Top         string // value of the top
	From, To    string // first and last time
	Width       int    // in units of the picture; the height is chartHeight
	Bars        []bar
}

// bar is one bar of a chart. For 0 it has only its place, so that a pointer can select
// it.
type bar struct {
	X, Y, H     float64
	Class       string
	Title, Path string
}

// Sizes in a chart, in its own units.
const (
	chartHeight = 100
	barStep     = 10
	leastBar    = 2 // so that a small value is visible
)

// point is one value for a chart.
type point struct {
	value float64
	class string
	title string
	path  string // target of a click; may be empty
}

// newChart returns a chart of points between two times. The top stands for least or
// more.
func newChart(title, from, to string, points []point, least float64, text func(float64) string) chart {
	top := least
	for _, p := range points {
		top = max(top, p.value)
	}
	top = roundUp(top)
	c := chart{Title: title, From: from, To: to, Top: text(top), Width: max(1, len(points)) * barStep}
	for i, p := range points {
		h := 0.
		if p.value > 0 && top > 0 {
			h = max(leastBar, math.Round(p.value/top*chartHeight*10)/10)
		}
		c.Bars = append(c.Bars, bar{X: float64(i * barStep), Y: chartHeight - h, H: h, Class: p.class, Title: p.title, Path: p.path})
	}
	return c
}

// roundUp returns the next round number: 1, 2 or 5 times a power of ten.
func roundUp(v float64) float64 {
	if v <= 0 {
		return 0
	}
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, n := range []float64{1, 2, 5, 10} {
		if v <= n*unit*(1+1e-9) {
			return n * unit
		}
	}
	return 10 * unit
}
