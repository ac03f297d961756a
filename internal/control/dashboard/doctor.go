package dashboard

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/control/api"
	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/hosts/doctor/ranking"
	"holdfast/internal/hosts/doctor/rule"
	"holdfast/internal/hosts/doctor/watch"
)

// Bounds of the page.
const (
	historyKept  = 100 // events to read
	nodesShown   = 100 // nodes of a comparison
	pathShown    = 6   // functions of a path through the kernel
	historyFresh = 5 * time.Second
)

// doctorData is the data of the page.
type doctorData struct {
	Off                       *off
	Degraded, DegradedAge     string
	Resting                   bool
	Kernel, Role              string
	At, Ago                   string // the last round
	Cost                      string
	Every                     string
	Critical, Warning, Notice figure
	Rounds                    figure
	Findings                  []findingRow
	Fine                      []string
	NotJudged                 []doctor.Check
	Gaps                      []fact.Gap
	Events                    []eventRow
	pager
}

// findingRow is one finding.
type findingRow struct {
	Rule, Severity, Title string
	Tag                   string
	At, Age               string
	Cause                 []string // the names of the culprit
	Path                  string   // through the kernel
	Against               []string
	Evidence              []rule.Evidence
	Cures                 []rule.Cure
}

type eventRow struct {
	At, When, Kind, Rule, Severity, Tag, Title, For string
}

// tagOf returns the colour of a severity.
func tagOf(s rule.Severity) string {
	switch s {
	case rule.Critical:
		return "trouble"
	case rule.Warning:
		return "degraded"
	}
	return "notice"
}

func doctorParts(ctx context.Context, d *Dashboard, v view) ([]part, error) {
	s, err := d.doctor.get(ctx)
	data := doctorData{Off: offOf(err)}
	if err == nil {
		data.fill(s)
		if h, err := d.history.get(ctx); err == nil {
			data.events(h.Events, v.query)
		}
		if g, err := d.metrics(ctx); err == nil {
			const metric = "holdfast_doctor_findings"
			data.Critical, data.Warning = g.figure(whole, metric, "severity=critical"), g.figure(whole, metric, "severity=warning")
			data.Notice, data.Rounds = g.figure(whole, metric, "severity=notice"), g.figure(whole, "holdfast_doctor_rounds_total")
		}
	}
	return []part{{"figures", "doctor-figures", data}, {"findings", "doctor-findings", data}, {"events", "doctor-events", data}, {"checked", "doctor-checked", data}}, nil
}

func (d *doctorData) fill(s api.DoctorStatus) {
	now := s.At
	d.Degraded, d.DegradedAge, d.Resting, d.Kernel, d.Role = s.Degraded, age(now, s.DegradedSince), s.Resting, s.Kernel, s.Role
	d.At, d.Ago = stamp(s.At), "no round has ended yet"
	if !s.At.IsZero() {
		d.Ago = s.At.UTC().Format("15:04:05")
	}
	d.Cost, d.Every = share(s.Cost.Share()), duration(s.Cost.Every)
	for _, f := range s.Findings {
		r := findingOf(f.Finding)
		r.At, r.Age = stamp(f.Since), age(now, f.Since)
		d.Findings = append(d.Findings, r)
	}
	for _, c := range s.Checked {
		switch c.Verdict {
		case doctor.Fine:
			d.Fine = append(d.Fine, c.Rule)
		case doctor.NotJudged:
			d.NotJudged = append(d.NotJudged, c)
		}
	}
	d.Gaps = s.Gaps
}

func findingOf(f doctor.Finding) findingRow {
	r := findingRow{Rule: f.Rule, Severity: string(f.Severity), Tag: tagOf(f.Severity), Title: f.Title, Evidence: f.Evidence, Cures: f.Cures}
	if f.Subject != nil {
		r.Cause = namesOf(*f.Subject)
		path := f.Subject.Kernel // the innermost first
		var out []string
		for i := min(pathShown, len(path)) - 1; i >= 0; i-- {
			out = append(out, path[i])
		}
		r.Path = strings.Join(out, " › ")
	}
	for _, w := range f.Against {
		r.Against = append(r.Against, strings.Join(namesOf(w), ", "))
	}
	return r
}

// namesOf returns the names of a subject that an operator knows.
func namesOf(w doctor.Subject) (out []string) {
	add := func(what, name string) {
		if name != "" {
			out = append(out, what+name)
		}
	}
	if w.Pod != nil {
		add("pod ", w.Pod.Namespace+"/"+w.Pod.Name)
		add("of ", w.Pod.Workload)
	}
	add("container ", w.Container)
	if w.Container == "" {
		add("container ", w.ContainerID[:min(12, len(w.ContainerID))])
	}
	add("image ", w.Image)
	if w.Pid > 0 {
		add("process ", strconv.Itoa(w.Pid))
	}
	add("", w.Command)
	if len(out) == 0 {
		add("control group ", w.Cgroup)
	}
	return out
}

func (d *doctorData) events(all []watch.Event, q query) {
	shown, where := cut(all, "/doctor", q)
	d.pager = where
	for _, e := range shown {
		r := eventRow{At: stamp(e.At), When: e.At.UTC().Format("2 Jan 15:04:05"), Kind: string(e.Kind), Rule: e.Finding.Rule, Severity: string(e.Finding.Severity),
			Tag: tagOf(e.Finding.Severity), Title: e.Finding.Title}
		if e.Kind == watch.Ended {
			r.For = age(e.At, e.Since)
		}
		d.Events = append(d.Events, r)
	}
}

// compareData is the data of the page that compares the fleet's hosts.
type compareData struct {
	Off        *off
	Bys        []choice
	Verdict    string
	Enough     bool
	Slow, Fast string
	Facts      []factRow
	Same       int
	Nodes      []rankedRow
	LeftOut    []ranking.Excluded
	More       int
}

type factRow struct {
	Name, Separation, Slow, Fast, P string
	Width                           float64
	Sure                            bool
}

type rankedRow struct {
	Node, Value string
	Slow        bool
}

func compareParts(ctx context.Context, d *Dashboard, v view) ([]part, error) {
	by, err := ranking.ParseBy(v.query.own["by"])
	if err != nil {
		return nil, &api.Error{Code: api.CodeBadRequest, Message: err.Error()}
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	all, err := d.source.Ranking(ctx, by)
	data := compareData{Off: offOf(err)}
	for _, x := range []struct {
		by   ranking.By
		name string
	}{{ranking.ByP50, "p50 of create and start"}, {ranking.ByP99, "p99 of create and start"}, {ranking.BySlow, "share of slow spin-ups"}} {
		data.Bys = append(data.Bys, choice{x.name, v.query.with("/doctor/fleet", "by", string(x.by)), x.by == by})
	}
	if err == nil {
		data.fill(all)
	}
	return []part{{"compare", "doctor-compare", data}}, nil
}

func (c *compareData) fill(r ranking.Ranking) {
	value := func(v float64) string {
		if r.By == ranking.BySlow {
			return share(v)
		}
		return duration(v)
	}
	c.Verdict, c.Enough, c.LeftOut, c.Same = r.Verdict, r.Enough, r.LeftOut, len(r.Same)
	c.Slow = fmt.Sprintf("%s slow nodes, median %s", thousands(r.Slow.Nodes), value(r.Slow.Median))
	c.Fast = fmt.Sprintf("%s others, median %s", thousands(r.Fast.Nodes), value(r.Fast.Median))
	for _, f := range r.Facts {
		c.Facts = append(c.Facts, factOf(f))
	}
	c.More = max(0, len(r.Nodes)-nodesShown)
	for _, n := range r.Nodes[:len(r.Nodes)-c.More] {
		c.Nodes = append(c.Nodes, rankedRow{string(n.Node), value(n.Value), n.Slow})
	}
}

// separationWidth is how much a separation differs from chance, in thousandths.
func separationWidth(v float64) float64 { return round(1000 * 2 * math.Abs(v-.5)) }

func factOf(f ranking.Fact) factRow {
	return factRow{Name: f.Name, Separation: strconv.FormatFloat(f.Separation(), 'f', 2, 64), Slow: number3(f.Slow), Fast: number3(f.Fast),
		P: strconv.FormatFloat(f.Corrected, 'g', 2, 64), Width: separationWidth(f.AUC), Sure: f.Separates}
}
