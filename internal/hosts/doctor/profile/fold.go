package profile

import (
	"cmp"
	"slices"
	"strings"
)

// Sides of a comparison. A single recording is the first.
const (
	good = 0
	bad  = 1
)

// node is a function in a tree of stacks, with the samples of the function and its
// callees on each side.
type node struct {
	frame    Frame
	total    [2]int64 // samples
	self     [2]int64
	children map[Frame]*node
}

func newNode(f Frame) *node { return &node{frame: f, children: make(map[Frame]*node)} }

// add adds a stack, the outermost function first.
func (n *node) add(side int, outermost []Frame, count int64) {
	n.total[side] += count
	for _, f := range outermost {
		child := n.children[f]
		if child == nil {
			child = newNode(f)
			n.children[f] = child
		}
		child.total[side] += count
		n = child
	}
	n.self[side] += count
}

// sorted returns the children by name, so that all pictures have the same order.
func (n *node) sorted() []*node {
	list := make([]*node, 0, len(n.children))
	for _, c := range n.children {
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b *node) int {
		return cmp.Or(strings.Compare(a.frame.Name, b.frame.Name), strings.Compare(a.frame.File, b.frame.File))
	})
	return list
}

// dominant is the share of a function's time that a callee needs for the path to continue
// through it.
const dominant = 0.6

// spine follows a path while one callee dominates, by the given measure.
func (n *node) spine(measure func(*node) float64) []string {
	path := []string{n.frame.Name}
	for {
		var next *node
		for _, c := range n.sorted() {
			if next == nil || measure(c) > measure(next) {
				next = c
			}
		}
		if next == nil || measure(next) <= 0 || measure(next) < dominant*measure(n) {
			return path
		}
		path, n = append(path, next.frame.Name), next
	}
}

// group is a container, or several that count as one.
type group struct {
	task       Task // of the first sample
	label      string
	containers [2]map[string]bool // ids
	total      [2]int64
	inKernel   [2]int64
	all        *node            // its root has no name
	kernel     *node            // paths through the kernel only
	self       map[Frame]*tally // by innermost function
	comms      [2]map[string]int64
}

type tally [2]int64

// fold sums recordings by group, for one side or two. label returns the label of a
// sample. The trees of complete stacks are only needed for pictures.
func fold(label func(Task) string, pictures bool, sides ...*Profile) []*group {
	byLabel := make(map[string]*group)
	var list []*group
	for side, p := range sides {
		for _, s := range p.Samples {
			name := label(s.Task)
			g := byLabel[name]
			if g == nil {
				g = &group{task: s.Task, label: name, all: newNode(Frame{}), kernel: newNode(Frame{}), self: make(map[Frame]*tally)}
				for i := range g.containers {
					g.containers[i], g.comms[i] = make(map[string]bool), make(map[string]int64)
				}
				byLabel[name] = g
				list = append(list, g)
			}
			g.add(side, p, s)
			if pictures {
				g.all.add(side, p.outermost(s), s.Count)
			}
		}
	}
	return list
}

func (g *group) add(side int, p *Profile, s Sample) {
	g.total[side] += s.Count
	g.comms[side][s.Task.Comm] += s.Count
	if s.Task.ContainerID != "" {
		g.containers[side][s.Task.ContainerID] = true
	}
	if path := p.Path(s); len(path) > 0 {
		g.inKernel[side] += s.Count
		frames := make([]Frame, len(path))
		for i, name := range path {
			frames[i] = Frame{Name: name, Kernel: true}
		}
		g.kernel.add(side, frames, s.Count)
	}
	if len(s.Stack) > 0 {
		f := p.Frames[s.Stack[0]]
		if g.self[f] == nil {
			g.self[f] = new(tally)
		}
		g.self[f][side] += s.Count
	}
}

// outermost returns a stack with the outermost function first.
func (p *Profile) outermost(s Sample) []Frame {
	frames := make([]Frame, 0, len(s.Stack))
	for _, i := range slices.Backward(s.Stack) {
		frames = append(frames, p.Frames[i])
	}
	return frames
}

// busiest returns the command with the most samples.
func (g *group) busiest(side int) string {
	best := ""
	for c, n := range g.comms[side] {
		if m := g.comms[side][best]; n > m || n == m && c < best {
			best = c
		}
	}
	return best
}
