package dashboard

import "math"

// chart is a row of bars. It is made on the server, as SVG: it needs no script,
// comes with the page and its updates, takes its colours from the page's style,
// and is no more than a few bytes for each bar. Beside each is a table with the
// same numbers.
type chart struct {
	Title, Note string
	Top         string // what the highest place stands for
	From, To    string // the ends of the time
	Width       int    // in units of the picture; its height is chartHeight
	Bars        []bar
}

// bar is one of a chart's. Nothing is drawn for 0 but its place, so that it can be
// pointed at.
type bar struct {
	X, Y, H     float64
	Class       string
	Title, Path string
}

// Sizes in a chart, in units of its own.
const (
	chartHeight = 100
	barStep     = 10
	leastBar    = 2 // so that a little is seen to be there
)

// point is one value for a chart.
type point struct {
	value float64
	class string
	title string
	path  string // where a click leads; may be empty
}

// newChart draws points. least is what the top stands for at least.
func newChart(title string, points []point, least float64, text func(float64) string) chart {
	top := least
	for _, p := range points {
		top = max(top, p.value)
	}
	top = roundUp(top)
	c := chart{Title: title, Top: text(top), Width: max(1, len(points)) * barStep}
	for i, p := range points {
		h := 0.
		if p.value > 0 && top > 0 {
			h = max(leastBar, math.Round(p.value/top*chartHeight*10)/10)
		}
		c.Bars = append(c.Bars, bar{X: float64(i * barStep), Y: chartHeight - h, H: h, Class: p.class, Title: p.title, Path: p.path})
	}
	return c
}

// roundUp is the next number that people like: 1, 2 or 5 and zeros.
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
