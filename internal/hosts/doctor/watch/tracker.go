package watch

import (
	"cmp"
	"slices"
	"time"

	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/rule"
)

// Open is a finding that has begun and not ended.
type Open struct {
	doctor.Finding
	Since time.Time `json:"since"`
	Seen  time.Time `json:"seen"` // last
}

// Kind is what happened to a finding.
type Kind string

// The kinds of events.
const (
	Began   Kind = "began"
	Changed Kind = "changed" // its severity
	Ended   Kind = "ended"
)

// Event is the begin, the change or the end of a finding.
type Event struct {
	At      time.Time      `json:"at"`
	Kind    Kind           `json:"kind"`
	Since   time.Time      `json:"since"` // when the finding began
	Finding doctor.Finding `json:"finding"`
}

// look is what one look came to.
type look struct {
	at       time.Time
	findings []doctor.Finding
	judged   map[string]bool // the rules that could judge
	deep     bool            // a burst, which counts for as many looks as it takes
}

// How many looks in a row it takes. One round of ten seconds may catch a container
// that starts; a finding that comes and goes is one finding.
const (
	toBegin = 2
	toEnd   = 3
)

// maxTracked bounds findings that are open, and those that are about to be.
const maxTracked = 100

// tracker turns looks into begins and ends. It is pure: time comes with the looks.
type tracker struct {
	tracked []*tracked
	dropped int // for want of room
}

// tracked is a finding that was seen.
type tracked struct {
	open    Open
	begun   bool
	seen    int           // looks in a row
	missed  int           // looks in a row that could have seen it
	milder  int           // looks in a row with a lesser severity
	deep    bool          // only deep looks have seen it
	lesser  rule.Severity // the worst of those
	touched bool          // in this look
}

// take takes a look in and returns what it changes.
func (t *tracker) take(l look) []Event {
	var events []Event
	for _, x := range t.tracked {
		x.touched = false
	}
	for _, f := range l.findings {
		if e, ok := t.see(f, l); ok {
			events = append(events, e)
		}
	}
	t.tracked = slices.DeleteFunc(t.tracked, func(x *tracked) bool {
		switch {
		case x.touched:
			return false
		case !x.begun:
			return true
		case !l.judged[x.open.Rule]:
			return false
		}
		x.seen, x.missed = 0, x.missed+1
		if x.missed < toEnd && !(l.deep && x.deep) {
			return false
		}
		events = append(events, Event{At: l.at, Kind: Ended, Since: x.open.Since, Finding: x.open.Finding})
		return true
	})
	return events
}

// see takes one finding of a look in.
func (t *tracker) see(f doctor.Finding, l look) (Event, bool) {
	x := t.find(f)
	if x == nil {
		if len(t.tracked) >= maxTracked {
			t.dropped++
			return Event{}, false
		}
		x = &tracked{open: Open{Finding: f, Since: l.at}, deep: true}
		t.tracked = append(t.tracked, x)
	}
	again := x.touched // by another finding of this look
	if !again {
		x.seen, x.missed, x.touched = x.seen+1, 0, true
	}
	if l.deep {
		x.seen = max(x.seen, toBegin)
	}
	x.deep = x.deep && l.deep
	x.open.Seen = l.at
	changed := x.update(f, again)
	switch {
	case !x.begun && x.seen >= toBegin:
		x.begun = true
		return Event{At: l.at, Kind: Began, Since: x.open.Since, Finding: x.open.Finding}, true
	case x.begun && changed:
		return Event{At: l.at, Kind: Changed, Since: x.open.Since, Finding: x.open.Finding}, true
	}
	return Event{}, false
}

// find is the one that a finding belongs to: of the same rule, about the same
// control group; or where either of them names none, of the same rule.
func (t *tracker) find(f doctor.Finding) *tracked {
	var alike *tracked
	for _, x := range t.tracked {
		if x.open.Rule != f.Rule {
			continue
		}
		if x.open.Culprit.Cgroup == f.Culprit.Cgroup {
			return x
		}
		if x.open.Culprit.Cgroup == "" || f.Culprit.Cgroup == "" {
			alike = x
		}
	}
	return alike
}

// update takes over what a newer look says, unless that would lose the culprit's
// name. It gets worse at once, and milder only after some looks. It reports whether
// the severity has changed.
func (x *tracked) update(f doctor.Finding, again bool) bool {
	before := x.open.Severity
	milder := f.Severity.Weight() < before.Weight()
	switch {
	case again && milder:
		return false // the worst of a look counts
	case !milder:
		x.milder, x.lesser = 0, ""
	default:
		if x.milder++; f.Severity.Weight() >= x.lesser.Weight() || x.lesser == "" {
			x.lesser = f.Severity
		}
	}
	severity := f.Severity
	if milder {
		severity = before
		if x.milder >= toEnd {
			severity, x.milder, x.lesser = x.lesser, 0, ""
		}
	}
	if f.Culprit.Cgroup != "" || x.open.Culprit.Cgroup == "" {
		x.open.Finding = f
	}
	x.open.Severity = severity
	return severity != before
}

// list are the open findings, the worst first, and of those the oldest.
func (t *tracker) list() []Open {
	list := []Open{}
	for _, x := range t.tracked {
		if x.begun {
			list = append(list, x.open)
		}
	}
	slices.SortStableFunc(list, func(a, b Open) int {
		return cmp.Or(cmp.Compare(b.Severity.Weight(), a.Severity.Weight()), a.Since.Compare(b.Since))
	})
	return list
}

// unsure reports whether there is something that only a deep look can confirm or
// end.
func (t *tracker) unsure() bool {
	return slices.ContainsFunc(t.tracked, func(x *tracked) bool { return x.begun && x.deep })
}
