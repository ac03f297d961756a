package profile

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Diff says what a host does that another does not, or more of. Figures are shares
// of all that a host's CPUs can do, 0 to 1: hosts of different size and recordings
// of different length can be compared.
type Diff struct {
	Good  Side     `json:"good"`
	Bad   Side     `json:"bad"`
	Notes []string `json:"notes"` // what to bear in mind
	// All are by how much they grew; those that shrank come last.
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

// Change is one line of what changed.
type Change struct {
	// Container is what both sides know it by: its name, or else its image.
	Container  string   `json:"container"`
	Image      string   `json:"image,omitempty"`
	Containers [2]int   `json:"containers"` // how many there are, good and bad
	Path       []string `json:"path,omitempty"`
	Function   string   `json:"function,omitempty"`
	Good       float64  `json:"good"`
	Bad        float64  `json:"bad"`
	Grew       float64  `json:"grew"`
	// Kernel is as much of Grew as was in the kernel, for a container.
	Kernel float64 `json:"kernel_grew,omitempty"`
	// Chance means that so small a difference may be chance.
	Chance bool `json:"chance,omitempty"`
}

// surely is how many standard deviations a difference has to have.
const surely = 3

// few is under how many samples a recording says little.
const few = 200

// Compare says what is different on the bad side.
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
		slices.SortFunc(*list, func(a, b Change) int {
			return cmp.Or(cmp.Compare(b.Grew, a.Grew), cmp.Compare(a.Container, b.Container), slices.Compare(a.Path, b.Path), cmp.Compare(a.Function, b.Function))
		})
	}
	slices.SortFunc(d.groups, func(a, b *group) int {
		return cmp.Or(cmp.Compare(d.grew(b.total), d.grew(a.total)), cmp.Compare(a.label, b.label))
	})
	return d
}

// Top is the difference with the changes that are more than chance, top of each
// kind, the largest first whichever way they went.
func (d Diff) Top(top int) Diff {
	for _, list := range []*[]Change{&d.Containers, &d.Kernel, &d.Functions} {
		kept := slices.DeleteFunc(slices.Clone(*list), func(c Change) bool { return c.Chance })
		slices.SortStableFunc(kept, func(a, b Change) int { return cmp.Compare(math.Abs(b.Grew), math.Abs(a.Grew)) })
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
	c := Change{Container: g.label, Image: g.who.Image, Containers: [2]int{len(g.containers[good]), len(g.containers[bad])},
		Good: d.share(good, samples[good]), Bad: d.share(bad, samples[bad]), Grew: d.grew(samples)}
	// Samples that come by chance spread as the root of their number.
	spread := 0.0
	for i, n := range samples {
		one := d.share(i, 1)
		spread += one * one * math.Max(1, float64(n))
	}
	c.Chance = math.Abs(c.Grew) < surely*math.Sqrt(spread)
	return c
}

// common finds what a container is called on both hosts: its name, where both have
// one of that name, else its image, where both have one of that. Ids differ.
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

// notes are what makes two recordings differ beside the hosts' health.
func notes(a, b *Profile) []string {
	list := []string{}
	add := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	if a.Meta.Kernel != b.Meta.Kernel {
		add("the kernels are different (%s and %s): a function may have another name, or other work, in the other", a.Meta.Kernel, b.Meta.Kernel)
	}
	if a.Meta.CPUs != b.Meta.CPUs {
		add("the hosts have %d and %d CPUs: shares are of all of them", a.Meta.CPUs, b.Meta.CPUs)
	}
	if a.Meta.Container != b.Meta.Container {
		add("one is of %s, the other of %s", whole(a.Meta.Container), whole(b.Meta.Container))
	}
	for i, p := range []*Profile{a, b} {
		name := [2]string{"good", "bad"}[i]
		n := p.Total()
		if n < few {
			add("the %s recording has %d samples only: record for longer, or on a busier host", name, n)
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
