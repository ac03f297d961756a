package spinup

import (
	"cmp"
	"errors"
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
	case q.By == ByArm && q.Filter.Experiment == "":
		return errors.New("an arm is that of one experiment: name the experiment")
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
	records, err := s.forReport(q)
	if err != nil {
		return Report{}, err
	}
	return NewReport(records, q, rules)
}

// forReport returns the records for a question, newest first, without the layers of pulls.
func (s *Store) forReport(q Question) ([]Record, error) {
	if err := q.Check(); err != nil {
		return nil, err
	}
	var records []Record
	err := s.each(q.Filter, func(r Record) bool {
		if r.Pull != nil {
			r.Pull.Layers = nil // most of its size, and not needed
		}
		records = append(records, r)
		return q.Filter.Limit <= 0 || len(records) < q.Filter.Limit
	})
	return records, err
}

// NewReport answers a question from records, newest first. The question's Filter
// has already been applied.
func NewReport(records []Record, q Question, rules Rules) (Report, error) {
	oldest, newest := ends(records)
	return q.report(q.groups(records, rules), len(records), oldest, newest)
}

// ends returns when the first and the last of the records, newest first, began.
func ends(records []Record) (oldest, newest time.Time) {
	if n := len(records); n > 0 {
		oldest, newest = records[n-1].Begun, records[0].Begun
	}
	return oldest, newest
}

// groups returns the question's groups in their order.
func (q Question) groups(records []Record, rules Rules) []Group {
	if q.At.IsZero() {
		return Summarize(records, q.of, rules)
	}
	return split(records, q.At, rules)
}

// sorted puts groups in their order.
func (q Question) sorted(groups []Group) []Group {
	sortGroups(groups)
	if q.At.IsZero() {
		return groups
	}
	both := []Group{{Name: Before, Phases: []PhaseStats{}}, {Name: After, Phases: []PhaseStats{}}}
	for _, g := range groups {
		for i := range both {
			if both[i].Name == g.Name {
				both[i] = g
			}
		}
	}
	return both
}

// report compares the groups, which are in their order.
func (q Question) report(groups []Group, count int, oldest, newest time.Time) (Report, error) {
	r := Report{By: cmp.Or(q.By, ByAll), At: q.At, Count: count, Oldest: oldest, Newest: newest, Groups: append([]Group{}, groups...), Compared: []Comparison{}}
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
