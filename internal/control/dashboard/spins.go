package dashboard

import (
	"cmp"
	"context"
	"slices"
	"sort"
	"strings"
	"time"
	"unique"

	"holdfast"
	"holdfast/internal/hosts/spinup"
)

// Intervals of reading spin-ups. All are read at first and periodically, to drop
// deleted records and to find those that ended late; in between only the latest are
// read.
const (
	spinsFresh = 5 * time.Second
	spinsAll   = 10 * time.Minute
	spinsBack  = time.Hour // a spin-up that ends later may have begun this much before the newest known one
)

// spin is the data of a spin-up that the pages need. It is short: there may be 10,000.
type spin struct {
	ID      string
	Begun   time.Time
	Took    holdfast.Millis
	Name    string // its purpose
	outcome unique.Handle[string]
	judged  [phaseCount]verdict
	groups  [groupCount]unique.Handle[string]
}

// verdict is the result of a rule for a phase.
type verdict uint8

const (
	notJudged verdict = iota
	fine
	slow
)

const (
	phaseCount = 5
	groupCount = 7
)

// phases are the columns of all tables.
func phases() []spinup.Phase { return spinup.Phases() }

// groupings lists how spin-ups can be grouped; the first is the default.
func groupings() [groupCount]spinup.By {
	return [groupCount]spinup.By{spinup.ByDriver, spinup.ByImage, spinup.ByHost, spinup.ByKind, spinup.ByEngine, spinup.ByKernel, spinup.ByUnpigz}
}

func spinOf(r spinup.Record, rules spinup.Rules) spin {
	s := spin{ID: r.ID, Begun: r.Begun, Took: r.Took, outcome: unique.Make(string(r.Outcome)), Name: strings.Clone(cmp.Or(r.Job, r.Name))}
	for i, by := range groupings() {
		s.groups[i] = unique.Make(by.Of(r))
	}
	for _, v := range rules.Judge(r) {
		i := slices.Index(phases(), v.Phase)
		if s.judged[i] = fine; v.Slow {
			s.judged[i] = slow
		}
	}
	return s
}

// slowPhases lists the slow phases.
func (s spin) slowPhases() string {
	var names []string
	for i, p := range phases() {
		if s.judged[i] == slow {
			names = append(names, string(p))
		}
	}
	return strings.Join(names, ", ")
}

// group returns the group of a spin-up.
func (s spin) group(by spinup.By) string {
	g := groupings()
	if i := slices.Index(g[:], by); i >= 0 {
		return s.groups[i].Value()
	}
	return ""
}

// slowIn reports whether a phase was slow; "" is any phase.
func (s spin) slowIn(p spinup.Phase) bool {
	if p == "" {
		return slices.Contains(s.judged[:], slow)
	}
	i := slices.Index(phases(), p)
	return i >= 0 && s.judged[i] == slow
}

// spins are the spin-ups that were read.
type spins struct {
	source Source
	whole  time.Time // time of the last read of all
	all    []spin    // by id, which is by time, the newest first; never modified
}

// read returns all spin-ups, the newest first. Callers must not modify them.
func (c *spins) read(context.Context) ([]spin, error) {
	var f spinup.Filter
	if len(c.all) > 0 && time.Since(c.whole) < spinsAll {
		f.Since = c.all[0].Begun.Add(-spinsBack)
	}
	records, err := c.source.Spinups(f)
	if err != nil {
		return c.all, err
	}
	rules := c.source.SlowRules()
	next := make([]spin, 0, len(records)+len(c.all))
	for _, r := range records {
		next = append(next, spinOf(r, rules))
	}
	if f.Since.IsZero() {
		c.whole = time.Now()
	} else {
		next = append(next, c.all[older(c.all, f.Since):]...)
	}
	c.all = next
	return next, nil
}

// older returns the index of the first spin-up that began before t.
func older(all []spin, t time.Time) int {
	return sort.Search(len(all), func(i int) bool { return all[i].Begun.Before(t) })
}
