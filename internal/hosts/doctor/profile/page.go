package profile

import (
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"io"
	"slices"
	"sort"
)

//go:embed page.css
var pageStyle string

// Widths of the pictures.
const (
	halfWidth  = 700
	wholeWidth = 1400
)

// Bounds of the page's content.
const (
	pageRows   = 30
	pageGroups = 5
)

// section is a set of three pictures: of the whole host, or of one group.
type section struct {
	ID, Name   string
	Good, Bad  float64
	Pictures   []Flame // good, bad
	Difference Flame
	Rows       []pageRow
}

// pageRow is a function in the table below a section's pictures.
type pageRow struct {
	Name        string
	Total, Self [2]float64
	Grew        float64

	file        string // of the function; orders functions of one name
	self, total tally
}

// PagePolicy returns the content security policy of the page: it allows only the page's
// own style.
func PagePolicy() string {
	hash := sha256.Sum256([]byte(pageStyle))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "'; base-uri 'none'; form-action 'none'"
}

// WritePage writes the comparison as one self-contained HTML file without scripts. Its
// policy forbids it to load anything.
func (d Diff) WritePage(w io.Writer) error {
	sections := []section{d.section("host", "The whole host", rootOf(d.groups))}
	for i, g := range d.groups[:min(pageGroups, len(d.groups))] {
		if d.grew(g.total) > 0 {
			sections = append(sections, d.section(fmt.Sprintf("group-%d", i+1), g.label, rootOf([]*group{g})))
		}
	}
	return page(d, sections).Render(context.Background(), w)
}

// grown returns the first changes that grew by more than chance.
func grown(list []Change) []Change {
	list = slices.DeleteFunc(slices.Clone(list), func(c Change) bool { return c.Grew <= 0 || c.Chance })
	return list[:min(pageRows, len(list))]
}

// shrunk returns the last changes that shrank by more than chance, the last first.
func shrunk(list []Change) []Change {
	list = slices.DeleteFunc(slices.Clone(list), func(c Change) bool { return c.Grew >= 0 || c.Chance })
	slices.Reverse(list)
	return list[:min(pageRows, len(list))]
}

func (d Diff) section(id, name string, root *node) section {
	s := section{ID: id, Name: name, Good: d.share(good, root.total[good]), Bad: d.share(bad, root.total[bad]),
		Pictures: []Flame{d.sideFlame(root, good, halfWidth), d.sideFlame(root, bad, halfWidth)}, Difference: d.diffFlame(root, wholeWidth)}
	rows := make(map[Frame]*pageRow)
	d.collect(root, nil, rows)
	for _, r := range rows {
		for i := range r.total {
			r.Self[i], r.Total[i] = d.share(i, r.self[i]), d.share(i, r.total[i])
		}
		r.Grew = r.Total[bad] - r.Total[good]
		s.Rows = append(s.Rows, *r)
	}
	weight := func(r pageRow) float64 { return max(r.Total[good], r.Total[bad]) }
	sort.Slice(s.Rows, func(i, j int) bool {
		a, b := s.Rows[i], s.Rows[j]
		return cmp.Or(cmp.Compare(weight(b), weight(a)), cmp.Compare(a.Name, b.Name), cmp.Compare(a.file, b.file)) < 0
	})
	s.Rows = s.Rows[:min(2*pageRows, len(s.Rows))]
	return s
}

// collect sums functions over a tree. A recursive function counts once.
func (d Diff) collect(n *node, above []Frame, rows map[Frame]*pageRow) {
	for f, c := range n.children {
		r := rows[f]
		if r == nil {
			r = &pageRow{Name: f.Name, file: f.File}
			rows[f] = r
		}
		again := slices.Contains(above, f)
		for i := range c.total {
			r.self[i] += c.self[i]
			if !again {
				r.total[i] += c.total[i]
			}
		}
		d.collect(c, append(slices.Clip(above), f), rows)
	}
}
