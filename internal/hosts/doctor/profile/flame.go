package profile

import (
	"fmt"
	"math"
	"strings"
)

// Sizes of a picture in its own units.
const (
	flameRow   = 17
	flameChar  = 6.3 // width of a letter
	flameDepth = 64  // rows at most
	flameLeast = 2.5 // width below which a function is left out
)

// Flame is a flame graph: each function lies on its caller, with a width of its share of
// the whole.
type Flame struct {
	Label         string
	Whole         float64 // share of the host that the whole width represents
	Width, Height int
	Boxes         []box
	Cut           bool // functions were too small or too deep to be drawn
}

// ViewBox is the attribute of the picture's svg element.
func (f Flame) ViewBox() string { return fmt.Sprintf("0 0 %d %d", f.Width, f.Height) }

// leftOut is a note for a picture without some of the functions.
func leftOut(f Flame) string {
	if f.Cut {
		return "; very small and very deep ones are left out"
	}
	return ""
}

// box is a function in a flame graph.
type box struct {
	X, Y, W float64
	Class   string
	Text    string // the part of the name that fits
	Title   string
}

// drawing is a flame graph under construction. measure returns the width of a node, class
// its colour class.
type drawing struct {
	Flame
	scale   float64
	measure func(*node) float64
	class   func(*node) string
	title   func(*node) string
}

// draw draws the descendants of a root.
func (d *drawing) draw(root *node, width int) Flame {
	d.Width = width
	if total := d.measure(root); total > 0 {
		d.scale = float64(width) / total
	}
	deepest := d.depth(root, 0)
	d.Height = deepest * flameRow
	x := 0.0
	for _, c := range root.sorted() {
		x = d.box(c, x, 0)
	}
	return d.Flame
}

// depth returns the number of rows above a node.
func (d *drawing) depth(n *node, at int) int {
	deepest := at
	for _, c := range n.children {
		if at < flameDepth && d.measure(c)*d.scale >= flameLeast {
			deepest = max(deepest, d.depth(c, at+1))
		}
	}
	return deepest
}

// box draws a node and its descendants, and returns where the next sibling begins.
func (d *drawing) box(n *node, x float64, row int) float64 {
	w := d.measure(n) * d.scale
	switch {
	case w <= 0:
		return x
	case w < flameLeast || row == flameDepth:
		d.Cut = true
		return x + w
	}
	d.Boxes = append(d.Boxes, box{X: round(x), Y: float64(d.Height - (row+1)*flameRow), W: round(w), Class: d.class(n), Title: d.title(n),
		Text: fit(n.frame.Name, w)})
	at := x
	for _, c := range n.sorted() {
		at = d.box(c, at, row+1)
	}
	return x + w
}

func round(v float64) float64 { return math.Round(v*100) / 100 }

// fit shortens a name to the width of a box. It shortens a Go function with its path
// (github.com/x/y.F) at the front, because its end is more significant.
func fit(name string, width float64) string {
	room := int((width - 4) / flameChar)
	path, args, called := strings.Cut(name, "(")
	if slash := strings.LastIndexByte(path, '/'); slash > 0 && len(name) > room {
		if name = path[slash+1:]; called {
			name += "(" + args
		}
	}
	letters := []rune(name)
	switch {
	case room < 3:
		return ""
	case len(letters) > room:
		return string(letters[:room-1]) + "…"
	}
	return name
}

// FlameOf draws a recording with its containers side by side. Shares refer to all the CPU
// time of the host.
func FlameOf(p *Profile) Flame {
	d := Diff{sides: [2]Meta{p.Meta, p.Meta}}
	f := d.sideFlame(rootOf(fold(Task.Label, true, p)), good, wholeWidth)
	f.Label = "recording"
	return f
}

// rootOf arranges the trees of groups side by side, each on a box with the group's name.
func rootOf(groups []*group) *node {
	root := newNode(Frame{})
	for _, g := range groups {
		n := *g.all
		n.frame = Frame{Name: g.label, File: groupFile}
		root.children[n.frame] = &n
		for i := range root.total {
			root.total[i] += n.total[i]
		}
	}
	return root
}

// groupFile marks the box of a group.
const groupFile = "\x00group"

// sideFlame returns the picture of one side, coloured by kernel and user space.
func (d Diff) sideFlame(root *node, side, width int) Flame {
	whole := root.total[side]
	g := &drawing{
		Flame:   Flame{Label: [2]string{"good", "bad"}[side], Whole: d.share(side, whole)},
		measure: func(n *node) float64 { return float64(n.total[side]) },
		class: func(n *node) string {
			switch {
			case n.frame.File == groupFile:
				return "g"
			case n.frame.Kernel:
				return "k"
			}
			return "u"
		},
		title: func(n *node) string {
			return fmt.Sprintf("%s: %s of the host, %s of this picture, %d samples", n.frame.Name, percent(d.share(side, n.total[side])),
				percent(ratio(n.total[side], whole)), n.total[side])
		},
	}
	return g.draw(root, width)
}

// diffFlame returns the bad side's picture coloured by change: red grew, blue shrank,
// with stronger colours for larger changes.
func (d Diff) diffFlame(root *node, width int) Flame {
	most := d.most(root)
	g := &drawing{
		Flame:   Flame{Label: "difference"},
		measure: func(n *node) float64 { return float64(n.total[bad]) },
		class: func(n *node) string {
			step := 0
			if most > 0 {
				step = int(math.Ceil(math.Abs(d.grew(n.total)) / most * 4))
			}
			switch {
			case step == 0 || d.change(&group{}, n.total).Chance:
				return "s"
			case d.grew(n.total) > 0:
				return fmt.Sprintf("r%d", step)
			}
			return fmt.Sprintf("b%d", step)
		},
		title: func(n *node) string {
			return fmt.Sprintf("%s: %s of the host, %s", n.frame.Name, percent(d.share(bad, n.total[bad])), points(d.grew(n.total)))
		},
	}
	return g.draw(root, width)
}

// most returns the largest change of a function.
func (d Diff) most(n *node) float64 {
	m := 0.0
	for _, c := range n.children {
		m = max(m, math.Abs(d.grew(c.total)), d.most(c))
	}
	return m
}

func ratio(a, b int64) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

func percent(share float64) string { return fmt.Sprintf("%.1f %%", 100*share) }

// points formats a change with its sign.
func points(share float64) string {
	s := fmt.Sprintf("%+.1f points", 100*share)
	return strings.Replace(s, "-", "−", 1)
}
