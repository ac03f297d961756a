package dashboard

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/hosts/spinup"
)

// span is the interval of the page's rows.
type span struct {
	Name   string
	step   time.Duration
	most   int    // intervals that are shown
	layout string // format of its begin
}

func spansOfTime() []span {
	return []span{
		{"day", 24 * time.Hour, 30, "2 Jan"}, // the default
		{"hour", time.Hour, 48, "2 Jan 15:04"},
		{"week", 7 * 24 * time.Hour, 12, "2 Jan"},
	}
}

// begin returns the begin of the interval of t: hours and days of UTC, weeks from
// Monday.
func (s span) begin(t time.Time) time.Time { return t.UTC().Truncate(s.step) } // Truncate counts from a Monday: 1 Jan of year 1

// spinQuery has the parameters of the page.
type spinQuery struct {
	per  span
	by   spinup.By
	kind spinup.Kind // "" is all
}

func spinQueryOf(q query) spinQuery {
	s := spinQuery{per: spansOfTime()[0], by: groupings()[0]}
	for _, p := range spansOfTime() {
		if q.own["per"] == p.Name {
			s.per = p
		}
	}
	if g := groupings(); slices.Contains(g[:], spinup.By(q.own["by"])) {
		s.by = spinup.By(q.own["by"])
	}
	if slices.Contains(spinup.Kinds(), spinup.Kind(q.own["kind"])) {
		s.kind = spinup.Kind(q.own["kind"])
	}
	return s
}

// tally counts the spin-ups of one phase.
type tally struct{ judged, slow int }

func (t *tally) add(v verdict) {
	if v != notJudged {
		t.judged++
	}
	if v == slow {
		t.slow++
	}
}

func (t tally) share() float64 {
	if t.judged == 0 {
		return 0
	}
	return float64(t.slow) / float64(t.judged)
}

// cell is a tally in a table.
type cell struct {
	Share, Of string // "3.5 %", "21 of 600"; Share is "" if no spin-up was judged
	Path      string // path of the slow spin-ups, "" if there are none
}

func (t tally) cell(path string) cell {
	if t.judged == 0 {
		return cell{}
	}
	c := cell{Share: share(t.share()), Of: thousands(t.slow) + " of " + thousands(t.judged)}
	if t.slow > 0 {
		c.Path = path
	}
	return c
}

// spinData is the data of the page.
type spinData struct {
	Trouble string
	Pers    []choice
	Bys     []choice
	Kinds   []choice
	Rules   []string // that are switched on
	Count   string
	From    string
	Total   []cell // by phase, over the whole time of the page
	Charts  []chart
	Per, By string
	Times   []spinRow // the newest first
	Groups  []spinRow // the largest first
	LeftOut int
	Since   []sinceRow
	Slow    []spin // the newest
	AllSlow string // path of all of them
}

// choice is one of several views.
type choice struct {
	Name, Path string
	Here       bool
}

type spinRow struct {
	Name, At string
	Count    string
	Cells    []cell
}

// sinceRow has the metrics of a phase.
type sinceRow struct {
	Phase        spinup.Phase
	Judged, Slow figure
	Share        string
}

// Bounds of the page.
const (
	maxSpinGroups = 50
	slowOnPage    = 10
)

func spinupParts(ctx context.Context, d *Dashboard, v view) ([]part, error) {
	q := spinQueryOf(v.query)
	all, err := d.spins.get(ctx)
	data := spinData{Per: q.per.Name, By: string(q.by), Rules: rulesOf(d.source.SlowRules())}
	if err != nil {
		data.Trouble = err.Error()
	}
	data.choices(q, v.query)
	now := time.Now()
	from := q.per.begin(now).Add(-time.Duration(q.per.most-1) * q.per.step)
	all = all[:older(all, from)]
	if q.kind != "" {
		all = slices.DeleteFunc(slices.Clone(all), func(s spin) bool { return s.group(spinup.ByKind) != string(q.kind) })
	}
	data.Count, data.From = thousands(len(all)), from.Format("2 January 15:04")
	data.overTime(q, v.query, all, from)
	data.byGroup(q, v.query, all, from)
	for _, s := range all {
		if s.slowIn("") && len(data.Slow) < slowOnPage {
			data.Slow = append(data.Slow, s)
		}
	}
	data.AllSlow = v.query.with("/spinup/slow", "per", "", "by", "")
	if g, err := d.metrics.get(ctx); err == nil {
		data.since(g)
	}
	return []part{{"notice", spinupNotice(data)}, {"choices", spinupChoices(data)}, {"times", spinupTimes(data)},
		{"groups", spinupGroups(data)}, {"slow", spinupSlowest(data)}, {"since", spinupSince(data)}}, nil
}

func (s *spinData) choices(q spinQuery, params query) {
	for _, p := range spansOfTime() {
		s.Pers = append(s.Pers, choice{p.Name, params.with("/spinup", "per", p.Name), p.Name == q.per.Name})
	}
	for _, by := range groupings() {
		s.Bys = append(s.Bys, choice{string(by), params.with("/spinup", "by", string(by)), by == q.by})
	}
	s.Kinds = []choice{{"all", params.with("/spinup", "kind", ""), q.kind == ""}}
	for _, k := range spinup.Kinds() {
		s.Kinds = append(s.Kinds, choice{string(k), params.with("/spinup", "kind", string(k)), k == q.kind})
	}
}

// overTime counts the spin-ups of each interval, the oldest first in the charts.
func (s *spinData) overTime(q spinQuery, params query, all []spin, from time.Time) {
	tallies := make([][phaseCount]tally, q.per.most)
	counts := make([]int, q.per.most)
	var total [phaseCount]tally
	for _, x := range all {
		i := min(int(x.Begun.Sub(from)/q.per.step), q.per.most-1) // the clock was ahead then
		counts[i]++
		for p, v := range x.judged {
			tallies[i][p].add(v)
			total[p].add(v)
		}
	}
	slowPath := func(phase spinup.Phase, since, until time.Time) string {
		return params.with("/spinup/slow", "per", "", "by", "", "phase", string(phase), "since", stamp(since), "until", stamp(until))
	}
	top := 5. // percent; one scale for all, so that they can be compared
	for i := range tallies {
		for _, t := range tallies[i] {
			top = max(top, 100*t.share())
		}
	}
	for p, phase := range phases() {
		s.Total = append(s.Total, total[p].cell(slowPath(phase, from, time.Time{})))
		points := make([]point, q.per.most)
		for i := range points {
			begin := from.Add(time.Duration(i) * q.per.step)
			t := tallies[i][p]
			points[i] = point{value: 100 * t.share(), class: "bad", title: begin.Format(q.per.layout) + ": " + t.words()}
			if t.slow > 0 {
				points[i].path = slowPath(phase, begin, begin.Add(q.per.step))
			}
		}
		c := newChart(string(phase), from.Format(q.per.layout), "now", points, top, func(v float64) string { return fmt.Sprintf("%g %%", min(v, 100)) })
		c.Note = total[p].words()
		s.Charts = append(s.Charts, c)
	}
	for i := range q.per.most {
		begin := from.Add(time.Duration(i) * q.per.step)
		r := spinRow{Name: begin.Format(q.per.layout), At: stamp(begin), Count: thousands(counts[i])}
		for p, phase := range phases() {
			r.Cells = append(r.Cells, tallies[i][p].cell(slowPath(phase, begin, begin.Add(q.per.step))))
		}
		s.Times = append(s.Times, r)
	}
	slices.Reverse(s.Times)
}

func (t tally) words() string {
	if t.judged == 0 {
		return "nothing to judge"
	}
	return fmt.Sprintf("%s slow, %s of %s", share(t.share()), thousands(t.slow), thousands(t.judged))
}

// byGroup counts the spin-ups of each group, the largest first.
func (s *spinData) byGroup(q spinQuery, params query, all []spin, from time.Time) {
	type group struct {
		name    string
		count   int
		tallies [phaseCount]tally
	}
	by := map[string]*group{}
	for _, x := range all {
		name := x.group(q.by)
		g := by[name]
		if g == nil {
			g = &group{name: name}
			by[name] = g
		}
		g.count++
		for p, v := range x.judged {
			g.tallies[p].add(v)
		}
	}
	list := slices.SortedFunc(maps.Values(by), func(a, b *group) int {
		return cmp.Or(b.count-a.count, strings.Compare(a.name, b.name))
	})
	s.LeftOut = max(0, len(list)-maxSpinGroups)
	for _, g := range list[:len(list)-s.LeftOut] {
		r := spinRow{Name: g.name, Count: thousands(g.count)}
		for p, phase := range phases() {
			r.Cells = append(r.Cells, g.tallies[p].cell(params.with("/spinup/slow", "per", "", "by", string(q.by), "group", g.name,
				"phase", string(phase), "since", stamp(from))))
		}
		s.Groups = append(s.Groups, r)
	}
}

// since sets the figures from the metrics, for all kinds.
func (s *spinData) since(g gathered) {
	for _, phase := range phases() {
		label := "phase=" + string(phase)
		r := sinceRow{Phase: phase, Judged: g.figure(whole, "holdfast_spinup_judged_total", label), Slow: g.figure(whole, "holdfast_spinup_slow_total", label), Share: "–"}
		judged, _ := g.sum("holdfast_spinup_judged_total", label)
		if n, ok := g.sum("holdfast_spinup_slow_total", label); ok && judged > 0 {
			r.Share = share(n / judged)
		}
		s.Since = append(s.Since, r)
	}
}

// rulesOf returns the text of the rules that are switched on.
func rulesOf(r spinup.Rules) (out []string) {
	for _, x := range []struct {
		phase spinup.Phase
		on    bool
		words string
	}{
		{spinup.Download, r.Download > 0, fmt.Sprintf("under %g MiB/s", r.Download)},
		{spinup.Extract, r.Extract > 0, fmt.Sprintf("under %g MiB/s", r.Extract)},
		{spinup.Create, r.Create > 0, fmt.Sprintf("over %g s", r.Create.Seconds())},
		{spinup.Start, r.Start > 0, fmt.Sprintf("over %g s", r.Start.Seconds())},
		{spinup.Ready, r.Ready > 0, fmt.Sprintf("over %g s", r.Ready.Seconds())},
	} {
		if x.on {
			out = append(out, string(x.phase)+" "+x.words)
		}
	}
	return out
}

// slowData is the data of the page of slow spin-ups.
type slowData struct {
	Trouble string
	Filters []string // of the list
	Back    string
	Rows    []spin
	pager
}

func slowParts(ctx context.Context, d *Dashboard, v view) ([]part, error) {
	all, err := d.spins.get(ctx)
	data := slowData{Back: v.query.with("/spinup", "phase", "", "group", "", "since", "", "until", "")}
	if err != nil {
		data.Trouble = err.Error()
	}
	own := v.query.own
	var since, until time.Time
	for name, t := range map[string]*time.Time{"since": &since, "until": &until} {
		if own[name] == "" {
			continue
		}
		if *t, err = time.Parse(time.RFC3339, own[name]); err != nil {
			return nil, &api.Error{Code: api.CodeBadRequest, Message: fmt.Sprintf("%s is %q, it must be a time such as 2026-11-01T12:00:00Z", name, own[name])}
		}
	}
	for _, x := range []struct{ name, words string }{{"phase", "slow in "}, {"group", own["by"] + " "}, {"kind", "kind "}, {"since", "from "}, {"until", "until "}} {
		if own[x.name] != "" {
			data.Filters = append(data.Filters, x.words+own[x.name])
		}
	}
	var rows []spin
	for _, s := range all {
		_, grouped := own["group"]
		if s.slowIn(spinup.Phase(own["phase"])) && !s.Begun.Before(since) && (until.IsZero() || s.Begun.Before(until)) &&
			(own["kind"] == "" || s.group(spinup.ByKind) == own["kind"]) && (!grouped || s.group(spinup.By(own["by"])) == own["group"]) {
			rows = append(rows, s)
		}
	}
	data.Rows, data.pager = paginate(rows, "/spinup/slow", v.query)
	return []part{{"slow", slowSpinups(data)}}, nil
}

// oneData is the data of the page of one spin-up.
type oneData struct {
	spin
	Record spinup.Record
	Phases []phaseRow
	From   string // origin of its image
}

type phaseRow struct {
	Name     spinup.Phase
	Took     string
	Value    string // the value that the rule judges
	Limit    string
	Judgment string
	Slow     bool
}

// stretch is a bar from one time to another, in thousandths of the whole.
type stretch struct {
	X, W float64
	Took holdfast.Millis
}

func oneSpinParts(ctx context.Context, d *Dashboard, v view) ([]part, error) {
	id := v.query.key
	if id == "" || strings.Trim(id, "0123456789abcdef") != "" {
		return nil, &api.Error{Code: api.CodeBadRequest, Message: fmt.Sprintf("%q is not an id of a spin-up", id)}
	}
	r, err := d.source.Spinup(id)
	if err != nil {
		return nil, err
	}
	rules := d.source.SlowRules()
	one := oneData{spin: spinOf(r, rules), Record: r}
	verdicts := rules.Judge(r)
	for _, p := range phases() {
		span, ok := r.Times[p]
		if !ok {
			continue
		}
		row := phaseRow{Name: p, Took: took(span), Judgment: "not judged"}
		for _, j := range verdicts {
			if j.Phase != p {
				continue
			}
			if row.Value, row.Limit = duration(j.Value), number3(j.Limit)+" s"; p.IsRate() {
				row.Value, row.Limit = number3(j.Value)+" MiB/s", number3(j.Limit)+" MiB/s"
			}
			if row.Judgment, row.Slow = "fine", j.Slow; j.Slow {
				row.Judgment = "slow"
			}
		}
		one.Phases = append(one.Phases, row)
	}
	switch p := r.Pull; {
	case p == nil:
	case p.Cached:
		one.From = "the image was present"
	case p.Joined:
		one.From = "another pull of the image was running"
	case p.Done:
		one.From = "registry"
	}
	return []part{{"spinup", oneSpinup(one)}}, nil
}

// stretchOf returns the bar of a layer's time within a pull that took the given time,
// nil if the span is empty.
func stretchOf(s spinup.Span, pull holdfast.Millis) *stretch {
	if s.To <= s.From {
		return nil
	}
	whole := float64(max(pull, 1))
	return &stretch{round(1000 * float64(s.From) / whole), max(2, round(1000*float64(s.To-s.From)/whole)), s.To - s.From}
}

// text formats the duration of the stretch.
func (s *stretch) text() string {
	if s == nil {
		return "–"
	}
	return took(s.Took)
}

// ended describes how the spin-up ended.
func (d oneData) ended() string {
	s := d.outcome.Value()
	if d.Record.Failed != "" {
		s += " in " + string(d.Record.Failed)
	}
	if d.Record.Cause != "" {
		s += ": " + string(d.Record.Cause)
	}
	return s
}

func round(v float64) float64 { return math.Round(v*10) / 10 }

// number3 formats a number with three significant digits, or with all digits before the
// point.
func number3(v float64) string {
	if math.Abs(v) >= 1000 && math.Abs(v) < 1e15 {
		return thousands(int(v))
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}
