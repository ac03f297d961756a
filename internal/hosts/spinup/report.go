package spinup

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"holdfast"
)

// Limits of a Report. Its groups come from outside if they are images.
const (
	maxGroups   = 100
	maxCompared = 8 // beside the first; a comparison of ten phases takes some 100 ms
)

// Question is the query for a Report.
type Question struct {
	Filter Filter
	By     By // "" is all
	// Against is the group with which the others are compared; "" is the largest.
	Against string
	// At, if not zero, replaces By: the spin-ups that began before it are one
	// group, the others the second.
	At time.Time
}

// The groups of a Question with At.
const (
	Before = "before"
	After  = "after"
)

// Report states how often phases were slow, by group.
type Report struct {
	By       By           `json:"by"`
	At       time.Time    `json:"at,omitzero"`
	Count    int          `json:"count"`  // records
	Oldest   time.Time    `json:"oldest"` // of them
	Newest   time.Time    `json:"newest"`
	Groups   []Group      `json:"groups"`   // the largest first, or Before and After
	LeftOut  int          `json:"left_out"` // groups beyond the displayed ones
	Compared []Comparison `json:"compared"` // each with the same A
}

// Comparison is the difference between group B and group A.
type Comparison struct {
	A      string       `json:"a"`
	B      string       `json:"b"`
	Phases []Difference `json:"phases"`
}

// Check validates the question. The errors are usage errors.
func (q Question) Check() error {
	if q.By != "" {
		if _, err := ParseBy(string(q.By)); err != nil {
			return err
		}
	}
	switch {
	case !q.At.IsZero() && q.By != "" && q.By != ByAll:
		return fmt.Errorf("records are split by a moment or by %s, not by both", q.By)
	case q.Against != "" && !q.At.IsZero():
		return fmt.Errorf("spin-ups after a moment are compared with those before it, not with %q", q.Against)
	case q.Against != "" && (q.By == "" || q.By == ByAll):
		return fmt.Errorf("there is only one group, and no group to compare with %q", q.Against)
	}
	return nil
}

// Report answers a question from the stored records. It returns
// holdfast.ErrNotFound if no group is called Against.
func (s *Store) Report(q Question, rules Rules) (Report, error) {
	if err := q.Check(); err != nil {
		return Report{}, err
	}
	var records []Record
	err := s.each(q.Filter, func(r Record) bool {
		if r.Pull != nil {
			r.Pull.Layers = nil // most of its size, and not needed
		}
		records = append(records, r)
		return q.Filter.Limit <= 0 || len(records) < q.Filter.Limit
	})
	if err != nil {
		return Report{}, err
	}
	return NewReport(records, q, rules)
}

// NewReport answers a question from records, newest first. The question's Filter
// has already been applied.
func NewReport(records []Record, q Question, rules Rules) (Report, error) {
	r := Report{By: cmp.Or(q.By, ByAll), At: q.At, Count: len(records), Groups: []Group{}, Compared: []Comparison{}}
	if n := len(records); n > 0 {
		r.Newest, r.Oldest = records[0].Begun, records[n-1].Begun
	}
	if q.At.IsZero() {
		r.Groups = append(r.Groups, Summarize(records, r.By, rules)...)
	} else {
		r.Groups = append(r.Groups, split(records, q.At, rules)...)
	}
	first, err := referenceGroup(r.Groups, q.Against)
	if err != nil {
		return Report{}, err
	}
	others := slices.Delete(slices.Clone(r.Groups), first, min(first+1, len(r.Groups)))
	others = others[:min(len(others), maxCompared)]
	for _, g := range others {
		r.Compared = append(r.Compared, Comparison{
			A: r.Groups[first].Name, B: g.Name, Phases: compare(r.Groups[first], g, len(others)),
		})
	}
	if len(r.Groups) > maxGroups {
		r.LeftOut = len(r.Groups) - maxGroups
		r.Groups = r.Groups[:maxGroups]
	}
	return r, nil
}

// split groups by a moment.
func split(records []Record, at time.Time, rules Rules) []Group {
	var before, after []Record
	for _, r := range records {
		if r.Begun.Before(at) {
			before = append(before, r)
		} else {
			after = append(after, r)
		}
	}
	return []Group{summarize(Before, before, rules), summarize(After, after, rules)}
}

// referenceGroup finds the group with which the others are compared.
func referenceGroup(groups []Group, name string) (int, error) {
	if name == "" {
		return 0, nil
	}
	i := slices.IndexFunc(groups, func(g Group) bool { return g.Name == name })
	if i < 0 {
		return 0, fmt.Errorf("group %.200q: %w", name, holdfast.ErrNotFound)
	}
	return i, nil
}
