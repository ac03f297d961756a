package dashboard

import (
	"context"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/control/api"
)

// protectData is the data of the page.
type protectData struct {
	Off                        *off
	Holds, Failed, Connections figure
	Longest                    string
	Ports                      []portRow
	NoPorts                    string
	Backends                   []backendRow
	Charts                     []chart
	Rows                       []holdRow
	pager
}

type backendRow struct {
	Name                                string
	Holds, Failed, Connections, Longest figure
}

type portRow struct {
	api.ProtectedPort
	Count, Waited, Longest string
	At, For                string // begin of the current hold
}

type holdRow struct {
	At, When, Ports, Program, Backend string
	Took, Connections, Longest        string
	Unanswered                        int
	Reason                            string
	Failed                            bool
	ExitCode                          int
}

const holdsDrawn = 60

func protectParts(ctx context.Context, d *Dashboard, v view) ([]part, error) {
	p, err := d.protection.get(ctx)
	data := protectData{Off: offOf(err), NoPorts: p.NoPorts}
	if err == nil {
		data.fill(p, v.query)
		if g, err := d.metrics(ctx); err == nil {
			data.count(g, p.Totals)
		}
	}
	return []part{{"figures", "protect-figures", data}, {"ports", "protect-ports", data}, {"holds", "protect-holds", data}, {"backends", "protect-backends", data}}, nil
}

func (d *protectData) fill(p api.Protection, q query) {
	now := time.Now()
	var longest time.Duration
	for _, t := range p.Totals {
		longest = max(longest, time.Duration(t.Longest))
	}
	d.Longest = duration(longest.Seconds())
	for _, x := range p.Ports {
		r := portRow{ProtectedPort: x, Count: thousands(x.Holds), Waited: thousands(x.Connections), Longest: took(x.Longest)}
		if !x.Since.IsZero() {
			r.At, r.For = stamp(x.Since), age(now, x.Since)
		}
		d.Ports = append(d.Ports, r)
	}
	var waits []point
	for i := min(holdsDrawn, len(p.Holds)) - 1; i >= 0; i-- {
		h := p.Holds[i]
		x := point{value: time.Duration(h.Longest).Seconds(), class: "a", title: h.At.UTC().Format("2 Jan 15:04") + ": " + took(h.Longest) + ", " + thousands(h.Connections) + " connections"}
		if h.Failed {
			x.class = "bad"
		}
		waits = append(waits, x)
	}
	if len(waits) > 0 {
		c := newChart("Longest wait, hold by hold", waits, .01, duration)
		c.From, c.To = "the last "+strconv.Itoa(len(waits)), "newest"
		d.Charts = []chart{c}
	}
	shown, where := cut(p.Holds, "/protect", q)
	d.pager = where
	for _, h := range shown {
		d.Rows = append(d.Rows, holdOf(h))
	}
}

func holdOf(h api.Hold) holdRow {
	var ports []string
	for _, p := range h.Ports {
		ports = append(ports, strconv.Itoa(int(p)))
	}
	return holdRow{At: stamp(h.At), When: h.At.UTC().Format("2 Jan 15:04:05"), Ports: strings.Join(ports, ", "), Program: h.Program, Backend: h.Backend,
		Took: took(h.Took), Connections: thousands(h.Connections), Longest: took(h.Longest), Unanswered: h.Unanswered, Reason: h.Reason,
		Failed: h.Failed, ExitCode: h.ExitCode}
}

// count sets the figures from the metrics.
func (d *protectData) count(g gathered, totals []api.HoldTotal) {
	const metric = "holdfast_protect_"
	d.Holds, d.Failed = g.figure(whole, metric+"holds_total"), g.figure(whole, metric+"failed_holds_total")
	d.Connections = g.figure(whole, metric+"connections_total")
	for _, t := range totals {
		label := "backend=" + t.Backend
		d.Backends = append(d.Backends, backendRow{t.Backend, g.figure(whole, metric+"holds_total", label), g.figure(whole, metric+"failed_holds_total", label),
			g.figure(whole, metric+"connections_total", label), g.figure(duration, metric+"longest_wait_seconds", label)})
	}
}
