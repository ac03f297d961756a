package watch

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/hosts/doctor/rule"
)

var start = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

func finding(name string, s rule.Severity, group string) doctor.Finding {
	return doctor.Finding{Finding: rule.Finding{Rule: name, Severity: s, Title: name, Culprit: fact.Subject{Cgroup: group}}}
}

// events runs a script of results through a tracker and returns its events. A result lists
// findings as "rule severity group", separated by commas. "deep:" marks a burst, "-" a
// result without findings, "?" a result in which no rule could judge.
func events(results ...string) []string {
	var t tracker
	var out []string
	for i, text := range results {
		l := examination{at: start.Add(time.Duration(i) * 10 * time.Second), judged: map[string]bool{"a": true, "b": true}}
		text, l.deep = strings.CutPrefix(text, "deep:")
		switch text {
		case "-":
		case "?":
			l.judged = nil
		default:
			for _, one := range strings.Split(text, ",") {
				w := append(strings.Fields(one), "")
				l.findings = append(l.findings, finding(w[0], rule.Severity(w[1]), w[2]))
			}
		}
		for _, e := range t.take(l) {
			out = append(out, strings.TrimSpace(fmt.Sprintf("%d %s %s %s %s", i, e.Kind, e.Finding.Rule, e.Finding.Severity, e.Finding.Culprit.Cgroup)))
		}
	}
	return out
}

func TestTracker(t *testing.T) {
	for _, c := range []struct {
		name    string
		results []string
		want    []string
	}{
		{"one result begins no finding", []string{"a warning /x", "-", "a warning /x", "-"}, nil},
		{"two consecutive results begin a finding", []string{"a warning /x", "a warning /x"}, []string{"1 began a warning /x"}},
		{"a burst needs no repetition", []string{"deep:a warning /x"}, []string{"0 began a warning /x"}},
		{"a burst ends its own finding", []string{"deep:a warning /x", "deep:-"}, []string{"0 began a warning /x", "1 ended a warning /x"}},
		{"a burst does not end a finding of rounds", []string{"a warning /x", "a warning /x", "deep:-", "a warning /x"}, []string{"1 began a warning /x"}},
		{"three results without it end a finding", []string{"a warning /x", "a warning /x", "-", "-", "-"}, []string{"1 began a warning /x", "4 ended a warning /x"}},
		{"two results without it do not end a finding", []string{"a warning /x", "a warning /x", "-", "-", "a warning /x", "-", "-"}, []string{"1 began a warning /x"}},
		{"results that cannot judge do not end a finding", []string{"a warning /x", "a warning /x", "?", "?", "?", "?"}, []string{"1 began a warning /x"}},
		{"two groups are two findings", []string{"a warning /x,a notice /y", "a warning /x,a notice /y"}, []string{"1 began a warning /x", "1 began a notice /y"}},
		{"a group that is named later belongs to the same finding", []string{"a warning", "a warning", "deep:a warning /x"}, []string{"1 began a warning"}},
		{"a group that is no longer named belongs to the same finding", []string{"a warning /x", "a warning /x", "a warning", "a warning"}, []string{"1 began a warning /x"}},
		{"a higher severity applies at once", []string{"a warning", "a warning", "a critical"}, []string{"1 began a warning", "2 changed a critical"}},
		{"a lower severity applies after three results", []string{"a critical", "a critical", "a warning", "a warning", "a critical", "a warning", "a warning", "a warning"},
			[]string{"1 began a critical", "7 changed a warning"}},
		{"the worst finding of a result counts", []string{"a critical,a warning", "a warning,a critical"}, []string{"1 began a critical"}},
		{"a first result is forgotten if the next cannot judge", []string{"a warning /x", "?", "a warning /x"}, nil},
	} {
		if got := events(c.results...); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v:\n got %q\nwant %q", c.name, c.results, got, c.want)
		}
	}
}

// For any results: beginnings and ends alternate, the open findings are those that have
// begun and not ended, and their number stays within the bound.
func TestTrackerInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tr tracker
		open := 0
		rules := []string{"a", "b", "c"}
		for i := range rapid.IntRange(1, 60).Draw(t, "results") {
			l := examination{at: start.Add(time.Duration(i) * time.Second), judged: map[string]bool{}, deep: rapid.Bool().Draw(t, "deep")}
			for _, r := range rules {
				l.judged[r] = rapid.Bool().Draw(t, "judged")
			}
			for range rapid.IntRange(0, 4).Draw(t, "found") {
				f := finding(rapid.SampledFrom(rules).Draw(t, "rule"), rapid.SampledFrom([]rule.Severity{rule.Notice, rule.Warning, rule.Critical}).Draw(t, "severity"),
					rapid.SampledFrom([]string{"", "/x", "/y", "/z"}).Draw(t, "group"))
				if l.judged[f.Rule] {
					l.findings = append(l.findings, f)
				}
			}
			for _, e := range tr.take(l) {
				switch e.Kind {
				case Began:
					open++
				case Ended:
					open--
				}
				if e.Since.After(e.At) || e.At != l.at {
					t.Fatalf("%+v", e)
				}
			}
			list := tr.list()
			if len(list) != open {
				t.Fatalf("%d findings are listed, %d have begun and not ended", len(list), open)
			}
			for i := 1; i < len(list); i++ {
				if list[i].Severity.Weight() > list[i-1].Severity.Weight() {
					t.Fatalf("not sorted by severity: %v", list)
				}
			}
		}
	})
}

// A known culprit stays known, with the evidence about it.
func TestTrackerKeepsTheName(t *testing.T) {
	var tr tracker
	for i, f := range []doctor.Finding{finding("a", rule.Warning, "/x"), finding("a", rule.Warning, "/x"), finding("a", rule.Critical, "")} {
		tr.take(examination{at: start.Add(time.Duration(i) * time.Second), judged: map[string]bool{"a": true}, findings: []doctor.Finding{f}})
	}
	if o := tr.list()[0]; o.Culprit.Cgroup != "/x" || o.Severity != rule.Critical || !o.Seen.Equal(start.Add(2*time.Second)) {
		t.Errorf("%+v", o)
	}
}

// A host with very many findings does not fill the memory.
func TestTrackerIsBounded(t *testing.T) {
	var tr tracker
	for i := range 2 {
		l := examination{at: start.Add(time.Duration(i) * time.Second), judged: map[string]bool{"a": true}}
		for g := range 3 * maxTracked {
			l.findings = append(l.findings, finding("a", rule.Warning, fmt.Sprintf("/g%d", g)))
		}
		tr.take(l)
	}
	if n := len(tr.list()); n != maxTracked || tr.dropped != 2*2*maxTracked {
		t.Errorf("%d findings are open, %d were dropped", n, tr.dropped)
	}
}

func TestBursts(t *testing.T) {
	c := DefaultConfig()
	busy := map[string]float64{fact.CPUSome: 0.5}
	type step struct {
		after  time.Duration // since the last step
		facts  map[string]float64
		asked  string
		unsure bool
		found  bool
		cost   time.Duration
		want   string
	}
	for name, steps := range map[string][]step{
		"no suspicion": {
			{after: 30 * time.Second, want: ""}, {after: 20 * time.Minute, want: ""}, {after: time.Hour, want: regularBurst}, {after: 59 * time.Minute, want: ""}, {after: time.Minute, want: regularBurst},
		},
		"no burst in the first minute": {{after: 30 * time.Second, facts: busy, want: ""}, {after: 30 * time.Second, facts: busy, want: "programs wait for CPUs"}},
		"a burst without a finding doubles the delay of its suspicion": {
			{after: time.Minute, facts: busy, want: "programs wait for CPUs"},
			{after: 5 * time.Minute, facts: busy, want: ""}, {after: 5 * time.Minute, facts: busy, want: "programs wait for CPUs"},
			{after: 10 * time.Minute, facts: busy, want: ""}, {after: 10 * time.Minute, facts: busy, want: "programs wait for CPUs"},
		},
		"a burst with a finding does not delay the next": {
			{after: time.Minute, facts: busy, found: true, want: "programs wait for CPUs"},
			{after: 4 * time.Minute, facts: busy, want: ""}, {after: time.Minute, facts: busy, found: true, want: "programs wait for CPUs"},
		},
		"another suspicion is not delayed": {
			{after: time.Minute, facts: busy, want: "programs wait for CPUs"}, {after: 5 * time.Minute, facts: busy, asked: slowSpinup, want: slowSpinup},
		},
		"a finding that only bursts see": {{after: time.Minute, unsure: true, want: openFinding}, {after: time.Minute, unsure: true, want: ""}, {after: 4 * time.Minute, unsure: true, want: openFinding}},
		"an expensive burst":             {{after: time.Minute, asked: slowSpinup, found: true, cost: 2 * time.Second, want: slowSpinup}, {after: 16 * time.Minute, asked: slowSpinup, want: ""}, {after: time.Minute, asked: slowSpinup, want: slowSpinup}},
	} {
		now := start
		b := newBursts(c, now)
		for i, s := range steps {
			now = now.Add(s.after)
			why := b.due(now, s.facts, s.asked, s.unsure)
			if why != s.want {
				t.Errorf("%s, step %d: %q, want %q", name, i, why, s.want)
			}
			if why != "" {
				b.ended(why, now, afterwards(s.cost, c.burstShare()), s.found)
			}
		}
	}
}

// For any suspicions and findings: there is at most one burst in burst_every, and at
// least one in look_every.
func TestBurstsAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := DefaultConfig()
		now := start
		b := newBursts(c, now)
		last := start
		for range 500 {
			now = now.Add(c.Every)
			facts := map[string]float64{fact.CPUSome: rapid.Float64Range(0, 1).Draw(t, "waits"), fact.MemcgDying: rapid.Float64Range(0, 3000).Draw(t, "dying")}
			asked := rapid.SampledFrom([]string{"", "", slowSpinup}).Draw(t, "asked")
			why := b.due(now, facts, asked, rapid.Bool().Draw(t, "unsure"))
			if why == "" {
				if now.Sub(last) > c.LookEvery+c.Every {
					t.Fatalf("no burst for %v", now.Sub(last))
				}
				continue
			}
			if last != start && now.Sub(last) < c.BurstEvery {
				t.Fatalf("burst for %q %v after the last one", why, now.Sub(last))
			}
			b.ended(why, now, 0, rapid.Bool().Draw(t, "found"))
			last = now
		}
	})
}

// For any costs of rounds: over any period, rounds use at most their share, plus maxSaved
// and the cost of the last round.
func TestBudget(t *testing.T) {
	share := DefaultConfig().roundShare()
	rapid.Check(t, func(t *rapid.T) {
		now := start
		p := budget{share: share, have: maxSaved, at: now}
		var spent, dearest time.Duration
		for range rapid.IntRange(1, 100).Draw(t, "rounds") {
			cost := time.Duration(rapid.IntRange(0, int(2*time.Second)).Draw(t, "cost"))
			spent, dearest = spent+cost, max(dearest, cost)
			now = now.Add(max(time.Second, p.spend(cost, now)))
		}
		if most := maxSaved + dearest + time.Duration(share*float64(now.Sub(start))); spent > most+time.Microsecond {
			t.Fatalf("%v spent in %v, at most %v", spent, now.Sub(start), most)
		}
	})
	p := budget{share: share, have: maxSaved, at: start}
	if wait := p.spend(maxSaved/2, start); wait != 0 {
		t.Errorf("after a round that costs %v the wait is %v, want 0", maxSaved/2, wait)
	}
	if wait := p.spend(maxSaved, start); wait < 49*time.Second || wait > 51*time.Second {
		t.Errorf("overdrawn by %v the wait is %v, want 50s", maxSaved/2, wait)
	}
}

// The share is at most one core, and it is divided between rounds and bursts.
func TestShare(t *testing.T) {
	for _, x := range []struct {
		share float64
		ok    bool
	}{{0, false}, {-1, false}, {0.0005, false}, {0.001, true}, {1, true}, {1.5, false}, {math.NaN(), false}} {
		c := DefaultConfig()
		c.Share = x.share
		if err := c.Validate(); (err == nil) != x.ok || err != nil && !strings.HasPrefix(err.Error(), "cpu_share: ") {
			t.Errorf("%v: %v", x.share, err)
		}
		if sum := c.roundShare() + c.burstShare(); x.ok && math.Abs(sum-x.share) > 1e-9 {
			t.Errorf("share %v: rounds and bursts get %v", x.share, sum)
		}
	}
}
