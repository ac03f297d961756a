package spinup

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"holdfast"
	"holdfast/internal/platform/engine"
)

func TestValidate(t *testing.T) {
	now := time.Now()
	if err := record(now, "x").Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Record){
		"kind":         func(r *Record) { r.Kind = "mine" },
		"outcome":      func(r *Record) { r.Outcome = "" },
		"cause":        func(r *Record) { r.Outcome, r.Cause = Failed, "moon" },
		"phase":        func(r *Record) { r.Outcome, r.Failed = Failed, "moon" },
		"time's phase": func(r *Record) { r.Times["moon"] = 1 },
		"time":         func(r *Record) { r.Times[Start] = -1 },
		"took":         func(r *Record) { r.Took = -1 },
		"image":        func(r *Record) { r.Image = "" },
		"id":           func(r *Record) { r.ID = "x" },
		"id's time":    func(r *Record) { r.Begun = r.Begun.Add(1) },
		"future":       func(r *Record) { *r = record(now.Add(time.Hour), "x") },
		"bytes":        func(r *Record) { r.Pull.Download.Bytes = -1 },
		"rate":         func(r *Record) { r.Pull.Extract.Rate = math.NaN() },
		"pull's took":  func(r *Record) { r.Pull.Took = -1 },
		"error":        func(r *Record) { r.Error = "it failed" },
		"its cause":    func(r *Record) { r.Cause = Other },
		"its phase":    func(r *Record) { r.Failed = Create },
		"half a pull":  func(r *Record) { r.Pull.Done = false },
	} {
		r := record(now, "x")
		change(&r)
		if r.Validate() == nil {
			t.Errorf("%s: %+v passes", name, r)
		}
	}
}

// TestTimersRecordsAreValid: with any input, an agent accepts the record of a Timer, and
// a failed spin-up is never a success.
func TestTimersRecordsAreValid(t *testing.T) {
	errs := []error{nil, errors.New("exec: \"x\": executable file not found in $PATH"), holdfast.ErrEngine, ErrEndedEarly, engine.ErrNoImage}
	rapid.Check(t, func(t *rapid.T) {
		timer := NewTimer(rapid.SampledFrom(Kinds()).Draw(t, "kind"), "image", Cohort{})
		var failed error
		if rapid.Bool().Draw(t, "pull") {
			p := Pull{Done: rapid.Bool().Draw(t, "done")}
			timer.Pulled(p)
			if !p.Done {
				failed = ErrEndedEarly
			}
		}
		for _, phase := range []Phase{Create, Start, Ready} {
			if failed == nil && rapid.Bool().Draw(t, string(phase)) {
				failed = rapid.SampledFrom(errs).Draw(t, "err")
				timer.Took(phase, time.Duration(rapid.IntRange(-1, 1000).Draw(t, "took")), failed)
			}
		}
		r := timer.End(failed)
		if err := r.Validate(); err != nil || (r.Outcome == OK) != (failed == nil) {
			t.Fatalf("%v of %+v, which failed with %v", err, r, failed)
		}
		if slices.Contains([]Phase{Create, Start, Ready}, r.Failed) && r.Cause == NoImage && !errors.Is(failed, engine.ErrNoImage) {
			t.Fatalf("%v is taken for a missing image", failed)
		}
	})
}

func TestSharedPullCountsNothingTwice(t *testing.T) {
	second := holdfast.Millis(time.Second)
	p := Pull{Done: true, Took: 12 * second, Resolve: second, Retries: 2, RetryWait: second, Layers: []Layer{{ID: "a"}},
		Download: Transfer{Bytes: 100, Wall: 8 * second, Rate: 1}, Extract: Transfer{Bytes: 100, Wall: 3 * second, Rate: 1}}
	for waited, want := range map[time.Duration][3]holdfast.Millis{
		20 * time.Second: {12 * second, 8 * second, 3 * second},
		11 * time.Second: {11 * second, 8 * second, 3 * second},
		5 * time.Second:  {5 * second, 2 * second, 3 * second},
		time.Second:      {second, 0, second},
	} {
		got := p.Shared(waited)
		if [3]holdfast.Millis{got.Took, got.Download.Wall, got.Extract.Wall} != want {
			t.Errorf("waited %v: %v, %v and %v, want %v", waited, got.Took, got.Download.Wall, got.Extract.Wall, want)
		}
		if !got.Joined || !got.Done || got.Download.Bytes+got.Extract.Bytes != 0 || got.Retries != 0 || len(DefaultRules().Judge(Record{Pull: &got})) > 0 {
			t.Errorf("%+v", got)
		}
	}
	if got := (Pull{Done: true, Cached: true}).Shared(0); got.Joined {
		t.Error("nothing was fetched, and yet it was joined")
	}
}

// TestSpread: intervals of percentiles from David and Nagaraja's rule, by hand
// from binomial tables: of 10 values the 2nd and 9th have the median between
// them (97.9 %), of 20 the 6th and 15th (95.9 %).
func TestSpread(t *testing.T) {
	count := func(n int) (out []float64) {
		for i := range n {
			out = append(out, float64(i+1))
		}
		return out
	}
	for _, c := range []struct {
		n    int
		q    float64
		want Range
	}{
		{0, .5, Range{}}, {1, .5, Range{1, 1, false, false}}, {5, .5, Range{1, 5, false, false}}, {6, .5, Range{1, 6, true, true}},
		{10, .5, Range{2, 9, true, true}}, {20, .5, Range{6, 15, true, true}}, {100, .99, Range{97, 100, true, false}}, {20, .1, Range{1, 6, false, true}},
	} {
		if got := (distribution{values: count(c.n)}).spread(c.q); got != c.want {
			t.Errorf("%v of %d: %+v, want %+v", c.q, c.n, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		n, q := rapid.IntRange(1, 2000).Draw(t, "n"), rapid.SampledFrom([]float64{.1, .5, .9, .99}).Draw(t, "q")
		values := distribution{values: count(n)}
		r := values.spread(q)
		if p := values.percentile(q); r.Low > p || r.High < p || r.Low < 1 || r.High > float64(n) {
			t.Fatalf("%v of %d is %v, within %+v", q, n, p, r)
		}
	})
}

func TestReport(t *testing.T) {
	begun := time.Now().Add(-time.Hour)
	var records []Record
	for i := range 40 {
		r := record(begun.Add(-time.Duration(i)*time.Second), "x:1")
		r.Cohort.Driver, r.Times[Create] = "overlay2", holdfast.Millis(time.Duration(100+i)*time.Millisecond)
		if i >= 24 {
			r.Cohort.Driver, r.Times[Create] = "aufs", holdfast.Millis(time.Duration(11+i)*time.Second)
		}
		records = append(records, r)
	}
	rules := DefaultRules()
	for name, q := range map[string]Question{
		"largest first": {By: ByDriver}, "against": {By: ByDriver, Against: "overlay2"}, "before and after": {At: begun.Add(-23*time.Second - 1)},
	} {
		got, err := NewReport(records, q, rules)
		if err != nil || got.Count != 40 || len(got.Groups) != 2 || len(got.Compared) != 1 {
			t.Fatalf("%s: %+v, %v", name, got, err)
		}
		d := got.Compared[0].Phases[0]
		want, a := Worse, "overlay2"
		if !q.At.IsZero() { // the later ones are overlay2's
			want, a = Better, Before
		}
		if d.Phase != Create || d.SlowChange != want || d.MedianChange != want || got.Compared[0].A != a {
			t.Errorf("%s: %+v", name, got.Compared)
		}
		if _, err := json.Marshal(got); err != nil {
			t.Error(err)
		}
	}
	if _, err := NewReport(records, Question{By: ByDriver, Against: "btrfs"}, rules); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("of a group that there is not: %v", err)
	}
	for _, q := range []Question{{By: "moon"}, {By: ByDriver, At: begun}, {Against: "x"}, {Against: Before, At: begun}} {
		if q.Check() == nil {
			t.Errorf("%+v passes", q)
		}
	}
	if got, err := NewReport(nil, Question{}, rules); err != nil || got.Count != 0 || got.Groups == nil || got.Compared == nil {
		t.Errorf("of nothing: %+v, %v", got, err)
	}
}

// TestReportIsBounded: groups by image come from outside.
func TestReportIsBounded(t *testing.T) {
	now := time.Now()
	var records []Record
	for i := range 500 {
		records = append(records, record(now.Add(-time.Duration(i)), strings.Repeat("x", i+1)))
	}
	records[0].Times[Create] = 0 // a median of 0 does not make an infinite ratio, which JSON cannot represent
	got, err := NewReport(records, Question{By: ByImage}, DefaultRules())
	if err != nil || len(got.Groups) != maxGroups || got.LeftOut != 400 || len(got.Compared) != maxCompared {
		t.Fatalf("%d groups, %d left out, %d compared, %v", len(got.Groups), got.LeftOut, len(got.Compared), err)
	}
	if _, err := json.Marshal(got); err != nil {
		t.Error(err)
	}
}

// TestManyComparisonsAreHeldTogether compares many equal groups. If each comparison had
// its own 5 %, some rounds would show a difference by chance.
func TestManyComparisonsAreHeldTogether(t *testing.T) {
	a, b := Group{Phases: []PhaseStats{{Phase: Create, Judged: 100, Slow: 10}}}, Group{Phases: []PhaseStats{{Phase: Create, Judged: 100, Slow: 24}}}
	for i := range 100 {
		a.Phases[0].values.values = append(a.Phases[0].values.values, float64(i))
		b.Phases[0].values.values = append(b.Phases[0].values.values, float64(i))
	}
	if got := compare(a, b, 1)[0]; got.SlowChange != Worse {
		t.Errorf("alone: %+v", got)
	}
	if got := compare(a, b, 8)[0]; got.SlowChange != NoDifference {
		t.Errorf("one of eight: %+v", got)
	}
}

func TestFilterByImageAndSlow(t *testing.T) {
	r := record(time.Now(), "registry:5000/team/app:1")
	r.Times[Create] = holdfast.Millis(11 * time.Second)
	rules, off := DefaultRules(), Rules{}
	for name, c := range map[string]struct {
		f    Filter
		want bool
	}{
		"with tag": {Filter{Image: "registry:5000/team/app:1"}, true}, "any tag": {Filter{Image: "registry:5000/team/app"}, true},
		"half a name": {Filter{Image: "registry:5000/team/ap"}, false}, "half a tag": {Filter{Image: "registry:5000/team/app:"}, false},
		"slow": {Filter{Slow: &rules}, true}, "slow by no rule": {Filter{Slow: &off}, false},
	} {
		if got := c.f.Takes(r); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestMetricsAreBounded: external text does not become a label.
func TestMetricsAreBounded(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg, DefaultRules())
	observe := func(name string) {
		for _, kind := range Kinds() {
			for _, outcome := range Outcomes() {
				for _, cause := range Causes() {
					r := record(time.Now(), name)
					r.Kind, r.Outcome, r.Cause, r.Job, r.Error, r.Name, r.Cohort.Host = kind, outcome, cause, name, name, name, name
					m.Observe(r)
				}
			}
		}
	}
	series := func() (n int) {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			n += len(f.GetMetric())
		}
		return n
	}
	observe("first")
	first := series()
	for _, name := range []string{"second", "third"} {
		observe(name)
	}
	if now := series(); now != first || first > 500 {
		t.Errorf("%d series, and %d with more images", first, now)
	}
}
