package profile

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sort"
)

// Diff describes what one host does more or less of than another. Figures are shares of
// all the CPU time of a host, 0 to 1, so hosts of different size and recordings of
// different length can be compared.
type Diff struct {
	Good  Side     `json:"good"`
	Bad   Side     `json:"bad"`
	Notes []string `json:"notes"` // to consider when reading the figures
	// The lists are sorted by growth; entries that shrank come last.
	Containers []Change `json:"containers"`
	Kernel     []Change `json:"kernel_paths"`
	Functions  []Change `json:"functions"`

	groups []*group
	sides  [2]Meta
}

// Side is one of the two recordings.
type Side struct {
	Meta    Meta    `json:"meta"`
	Samples int64   `json:"samples"`
	Busy    float64 `json:"busy"`
}

// Change is a difference of one container, path or function.
type Change struct {
	// Container is the name that both sides have in common: the container's name, or else
	// its image.
	Container  string   `json:"container"`
	Image      string   `json:"image,omitempty"`
	Containers [2]int   `json:"containers"` // number of containers, good and bad
	Path       []string `json:"path,omitempty"`
	Function   string   `json:"function,omitempty"`
	Good       float64  `json:"good"`
	Bad        float64  `json:"bad"`
	Grew       float64  `json:"grew"`
	// Kernel is the part of Grew that was in the kernel, for a container.
	Kernel float64 `json:"kernel_grew,omitempty"`
	// Chance means that the difference is small enough to be chance.
	Chance bool `json:"chance,omitempty"`
}

// significantDeviations is the number of standard deviations that a significant difference needs.
const significantDeviations = 3

// few is the number of samples below which a recording is not significant.
const few = 200

// Compare returns what differs on the bad side.
func Compare(goodSide, badSide *Profile) Diff {
	label := common(goodSide, badSide)
	d := Diff{Good: side(goodSide), Bad: side(badSide), Notes: notes(goodSide, badSide), sides: [2]Meta{goodSide.Meta, badSide.Meta},
		Containers: []Change{}, Kernel: []Change{}, Functions: []Change{}}
	d.groups = fold(label, true, goodSide, badSide)
	for _, g := range d.groups {
		c := d.change(g, g.total)
		c.Kernel = d.grew(g.inKernel)
		d.Containers = append(d.Containers, c)
		for _, n := range g.kernel.children {
			c := d.change(g, n.total)
			sign := 1.0
			if c.Grew < 0 {
				sign = -1
			}
			c.Path = n.spine(func(n *node) float64 { return sign * d.grew(n.total) })
			d.Kernel = append(d.Kernel, c)
		}
		for f, n := range g.self {
			c := d.change(g, *n)
			c.Function = f.Name
			d.Functions = append(d.Functions, c)
		}
	}
	for _, list := range []*[]Change{&d.Containers, &d.Kernel, &d.Functions} {
		sort.Slice(*list, func(i, j int) bool {
			a, b := &(*list)[i], &(*list)[j]
			return cmp.Or(cmp.Compare(b.Grew, a.Grew), cmp.Compare(a.Container, b.Container), slices.Compare(a.Path, b.Path), cmp.Compare(a.Function, b.Function)) < 0
		})
	}
	slices.SortFunc(d.groups, func(a, b *group) int {
		return cmp.Or(cmp.Compare(d.grew(b.total), d.grew(a.total)), cmp.Compare(a.label, b.label))
	})
	return d
}

// Top returns the differences that are not chance, top of each kind, sorted by their
// absolute size.
func (d Diff) Top(top int) Diff {
	for _, list := range []*[]Change{&d.Containers, &d.Kernel, &d.Functions} {
		kept := slices.DeleteFunc(slices.Clone(*list), func(c Change) bool { return c.Chance })
		sort.SliceStable(kept, func(i, j int) bool { return cmp.Less(math.Abs(kept[j].Grew), math.Abs(kept[i].Grew)) })
		*list = kept[:min(top, len(kept))]
	}
	return d
}

func side(p *Profile) Side {
	return Side{Meta: p.Meta, Samples: p.Total(), Busy: p.Busy()}
}

func (d Diff) share(side int, samples int64) float64 { return d.sides[side].share(samples) }

func (d Diff) grew(samples [2]int64) float64 {
	return d.share(bad, samples[bad]) - d.share(good, samples[good])
}

func (d Diff) change(g *group, samples [2]int64) Change {
	c := Change{Container: g.label, Image: g.task.Image, Containers: [2]int{len(g.containers[good]), len(g.containers[bad])},
		Good: d.share(good, samples[good]), Bad: d.share(bad, samples[bad]), Grew: d.grew(samples)}
	// The standard deviation of a number of random samples is its square root.
	spread := 0.0
	for i, n := range samples {
		one := d.share(i, 1)
		spread += one * one * math.Max(1, float64(n))
	}
	c.Chance = math.Abs(c.Grew) < significantDeviations*math.Sqrt(spread)
	return c
}

// common returns a func that labels a container with what both hosts have in common: its
// name if both have a container of that name, or else its image if both have one of it.
// Ids always differ.
func common(sides ...*Profile) func(Task) string {
	containers, images := make(map[string]int), make(map[string]int)
	for i, p := range sides {
		for _, s := range p.Samples {
			containers[s.Task.Container] |= 1 << i
			images[s.Task.Image] |= 1 << i
		}
	}
	all := 1<<len(sides) - 1
	return func(w Task) string {
		if w.Image != "" && images[w.Image] == all && containers[w.Container] != all {
			return "image " + w.Image
		}
		return w.Label()
	}
}

// notes lists the reasons, other than the hosts' health, for which two recordings differ.
func notes(a, b *Profile) []string {
	list := []string{}
	add := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	if a.Meta.Kernel != b.Meta.Kernel {
		add("the kernels differ (%s and %s): a function may have another name or another purpose in the other kernel", a.Meta.Kernel, b.Meta.Kernel)
	}
	if a.Meta.CPUs != b.Meta.CPUs {
		add("the hosts have %d and %d CPUs: shares refer to all of them", a.Meta.CPUs, b.Meta.CPUs)
	}
	if a.Meta.Container != b.Meta.Container {
		add("one recording is of %s, the other of %s", whole(a.Meta.Container), whole(b.Meta.Container))
	}
	for i, p := range []*Profile{a, b} {
		name := [2]string{"good", "bad"}[i]
		n := p.Total()
		if n < few {
			add("the %s recording has only %d samples: record for longer, or on a busier host", name, n)
		}
		if lost := p.Meta.Lost + p.Meta.Dropped; float64(lost) > 0.01*float64(n) {
			add("the %s recording has lost %d records or stacks", name, lost)
		}
		for _, gap := range p.Meta.Gaps {
			add("the %s recording: %s", name, gap)
		}
	}
	return list
}

func whole(container string) string {
	if container == "" {
		return "the whole host"
	}
	return "container " + container
}
