package dashboard

import (
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/control/api"
	"holdfast/internal/hosts/doctor"
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
	api.DoctorStatus
	Off                       *api.Error
	Critical, Warning, Notice figure
	Rounds                    figure
	Fine                      []string
	NotJudged                 []doctor.Check
	Events                    []watch.Event
	pager
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
	data := doctorData{Off: api.ErrorOf(err)}
	if err == nil {
		data.fill(s)
		if h, err := d.history.get(ctx); err == nil {
			data.Events, data.pager = paginate(h.Events, "/doctor", v.query)
		}
		if g, err := d.metrics.get(ctx); err == nil {
			const metric = "holdfast_doctor_findings"
			data.Critical, data.Warning = g.figure(whole, metric, "severity=critical"), g.figure(whole, metric, "severity=warning")
			data.Notice, data.Rounds = g.figure(whole, metric, "severity=notice"), g.figure(whole, "holdfast_doctor_rounds_total")
		}
	}
	return []part{{"figures", doctorFigures(data)}, {"findings", doctorFindings(data)}, {"events", doctorEvents(data)}, {"checked", doctorChecks(data)}}, nil
}

func (d *doctorData) fill(s api.DoctorStatus) {
	d.DoctorStatus = s
	for _, c := range s.Checked {
		switch c.Verdict {
		case doctor.Fine:
			d.Fine = append(d.Fine, c.Rule)
		case doctor.NotJudged:
			d.NotJudged = append(d.NotJudged, c)
		}
	}
}

// stackOf formats the innermost functions of a subject's path through the kernel.
func stackOf(w doctor.Subject) string {
	path := slices.Clone(w.Kernel[:min(pathShown, len(w.Kernel))]) // the innermost first
	slices.Reverse(path)
	return strings.Join(path, " › ")
}

// programOf formats the innermost functions of a subject's path through its program.
func programOf(w doctor.Subject) string {
	path := w.Program()
	return strings.Join(path[max(0, len(path)-pathShown):], " › ")
}

// namesOf formats the names of a subject that an operator knows.
func namesOf(w doctor.Subject) string {
	var out []string
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
	return strings.Join(out, ", ")
}

// affected formats the names of several subjects.
func affected(all []doctor.Subject) string {
	var names []string
	for _, w := range all {
		names = append(names, namesOf(w))
	}
	return strings.Join(names, "; ")
}

// compareData is the data of the page that compares the fleet's hosts.
type compareData struct {
	ranking.Ranking
	Off  *api.Error
	Bys  []choice
	More int // nodes that are not shown
}

func compareParts(ctx context.Context, d *Dashboard, v view) ([]part, error) {
	by, err := ranking.ParseBy(v.query.own["by"])
	if err != nil {
		return nil, &api.Error{Code: api.CodeBadRequest, Message: err.Error()}
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	all, err := d.source.Ranking(ctx, by)
	data := compareData{Ranking: all, Off: api.ErrorOf(err), More: max(0, len(all.Nodes)-nodesShown)}
	data.Nodes = all.Nodes[:len(all.Nodes)-data.More]
	for _, x := range []struct {
		by   ranking.By
		name string
	}{{ranking.ByP50, "p50 of create and start"}, {ranking.ByP99, "p99 of create and start"}, {ranking.BySlow, "share of slow spin-ups"}} {
		data.Bys = append(data.Bys, choice{x.name, v.query.with("/doctor/fleet", "by", string(x.by)), x.by == by})
	}
	return []part{{"compare", comparison(data)}}, nil
}

// text formats a value of the ranking's criterion.
func (c compareData) text(v float64) string {
	if c.By == ranking.BySlow {
		return share(v)
	}
	return duration(v)
}

// separationWidth is how much a separation differs from chance, in thousandths.
func separationWidth(v float64) float64 { return round(1000 * 2 * math.Abs(v-.5)) }
