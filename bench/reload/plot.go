package reload

import (
	"fmt"
	"html/template"
	"math"
	"strings"
	"time"
)

// A plot is a grid of dots: time to the right, the wait upward by its logarithm.
const (
	dot        = 2 // pixels, also of the SVG's unit
	plotCols   = 330
	plotRows   = 100
	failedRows = 4 // above the grid
	left       = 44
	top        = 8
)

// The waits at the lower and the upper end, in microseconds.
const (
	plotLow  = 100.0
	plotHigh = 10e6
)

// shades are how many requests a dot stands for, at least, from pale to full.
var shades = [...]int{1, 4, 20}

// Plot is the picture of one run, as parts of an SVG.
type Plot struct {
	Width, Height int
	Shades        []template.HTMLAttr // paths of dots, pale to full
	Failed        template.HTMLAttr
	Changes       template.HTMLAttr // a mark for each reload, below
	Rows, Columns []Tick
	Left, Right   int
	Top, Bottom   int
	Dot           int
}

// Tick is a line of the grid with its label.
type Tick struct {
	At    int
	Label string
}

// plotOf draws the requests at the times at which they were due, and the changes below
// them.
func plotOf(rec *recording, changes []span) Plot {
	p := Plot{
		Width: left + plotCols*dot + 8, Height: top + (failedRows+plotRows)*dot + 30, Dot: dot,
		Left: left, Right: left + plotCols*dot, Top: top + failedRows*dot, Bottom: top + (failedRows+plotRows)*dot,
	}
	whole := max(rec.took, time.Millisecond)
	column := func(d time.Duration) int {
		return min(max(int(float64(d)/float64(whole)*plotCols), 0), plotCols-1)
	}
	var counts [plotCols][plotRows]int
	var failed [plotCols]bool
	for _, q := range rec.requests {
		c := column(time.Duration(q.due) * time.Microsecond)
		if q.why != fine {
			failed[c] = true
			continue
		}
		counts[c][rowOf(float64(q.wait))]++
	}
	var paths [len(shades)]strings.Builder
	var failures, marks strings.Builder
	var marked [plotCols]bool
	for _, s := range changes {
		marked[column(s.at)] = true
	}
	for c := range counts {
		x := left + c*dot
		for r, n := range counts[c] {
			if s := shadeOf(n); s >= 0 {
				fmt.Fprintf(&paths[s], "M%d %dh%d", x, p.Bottom-r*dot-dot/2, dot)
			}
		}
		if failed[c] {
			fmt.Fprintf(&failures, "M%d %dv%d", x+dot/2, top, failedRows*dot)
		}
		if marked[c] {
			fmt.Fprintf(&marks, "M%d %dv4", x+dot/2, p.Bottom+2)
		}
	}
	for i := range paths {
		p.Shades = append(p.Shades, path(&paths[i]))
	}
	p.Failed, p.Changes = path(&failures), path(&marks)
	p.grid(whole)
	return p
}

// path returns the attribute of an SVG path. Its text consists of numbers only.
func path(b *strings.Builder) template.HTMLAttr {
	return template.HTMLAttr(`d="` + b.String() + `"`)
}

// rowOf returns the row of a wait in microseconds, counted from the bottom.
func rowOf(wait float64) int {
	share := math.Log(max(wait, plotLow)/plotLow) / math.Log(plotHigh/plotLow)
	return min(int(share*plotRows), plotRows-1)
}

// shadeOf is the shade of a dot for n requests, -1 for none.
func shadeOf(n int) int {
	s := -1
	for i, least := range shades {
		if n >= least {
			s = i
		}
	}
	return s
}

func (p *Plot) grid(whole time.Duration) {
	for _, w := range []time.Duration{time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond, time.Second} {
		share := math.Log(float64(w.Microseconds())/plotLow) / math.Log(plotHigh/plotLow)
		p.Rows = append(p.Rows, Tick{p.Bottom - int(share*plotRows)*dot, w.String()})
	}
	step := niceStep(whole.Seconds() / 6)
	for s := 0.0; s <= whole.Seconds(); s += step {
		p.Columns = append(p.Columns, Tick{left + int(s/whole.Seconds()*plotCols)*dot, fmt.Sprintf("%gs", s)})
	}
}

// niceStep is 1, 2 or 5 times a power of ten, and not under v.
func niceStep(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(max(v, 1e-3))))
	for _, m := range []float64{1, 2, 5} {
		if m*power >= v {
			return m * power
		}
	}
	return 10 * power
}
