package watch

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/rule"
)

// Open is a finding that has begun and not ended.
type Open struct {
	doctor.Finding
	Since time.Time `json:"since"`
	Seen  time.Time `json:"seen"` // last time
}

// Kind is the kind of an event.
type Kind string

// The kinds of events.
const (
	Began   Kind = "began"
	Changed Kind = "changed" // the severity has changed
	Ended   Kind = "ended"
)

// Event is the beginning, the change or the end of a finding.
type Event struct {
	At      time.Time      `json:"at"`
	Kind    Kind           `json:"kind"`
	Since   time.Time      `json:"since"` // when the finding began
	Finding doctor.Finding `json:"finding"`
}

// examination is the result of a round or a burst.
type examination struct {
	at       time.Time
	findings []doctor.Finding
	judged   map[string]bool // the rules that could judge
	deep     bool            // a burst; it needs no repetition
}

// Numbers of consecutive rounds. A single round of ten seconds may coincide with the
// start of a container, and a finding that comes and goes is one finding.
const (
	toBegin = 2
	toEnd   = 3
)

// maxTracked bounds the findings that are open or may become open.
const maxTracked = 100

// tracker turns results into beginnings and ends of findings. It is pure: time comes with
// the results.
type tracker struct {
	tracked []*tracked
	dropped int // findings beyond maxTracked
}

// tracked is a finding that was seen.
type tracked struct {
	open    Open
	begun   bool
	seen    int           // consecutive results with the finding
	missed  int           // consecutive results that judged its rule without finding it
	milder  int           // consecutive results with a lower severity
	deep    bool          // seen only by bursts
	lesser  rule.Severity // the worst of the lower severities
	touched bool          // seen in the current result
}

// take processes a result and returns the events that it causes.
func (t *tracker) take(l examination) []Event {
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

// see processes one finding of a result.
func (t *tracker) see(f doctor.Finding, l examination) (Event, bool) {
	x := t.find(f)
	if x == nil {
		if len(t.tracked) >= maxTracked {
			t.dropped++
			return Event{}, false
		}
		x = &tracked{open: Open{Finding: f, Since: l.at}, deep: true}
		t.tracked = append(t.tracked, x)
	}
	again := x.touched // by another finding of the same result
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

// find returns the tracked finding that f belongs to: of the same rule and the same
// control group, or of the same rule if one of them names no group.
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

// update takes over a newer finding, unless that would lose the culprit's name. A higher
// severity applies at once, a lower one after several results. It reports whether the
// severity has changed.
func (x *tracked) update(f doctor.Finding, again bool) bool {
	before := x.open.Severity
	milder := f.Severity.Weight() < before.Weight()
	switch {
	case again && milder:
		return false // the worst finding of a result counts
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

// list returns the open findings, the most severe first, and the oldest first among
// equals.
func (t *tracker) list() []Open {
	list := []Open{}
	for _, x := range t.tracked {
		if x.begun {
			list = append(list, x.open)
		}
	}
	sort.SliceStable(list, func(i, j int) bool {
		a, b := &list[i], &list[j]
		return cmp.Or(cmp.Compare(b.Severity.Weight(), a.Severity.Weight()), a.Since.Compare(b.Since)) < 0
	})
	return list
}

// unsure reports whether there is a finding that only a burst can confirm or end.
func (t *tracker) unsure() bool {
	return slices.ContainsFunc(t.tracked, func(x *tracked) bool { return x.begun && x.deep })
}
