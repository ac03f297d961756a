package dashboard

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
)

// protectData is the data of the page.
type protectData struct {
	Off                        *api.Error
	Holds, Failed, Connections figure
	Longest                    holdfast.Millis
	Now                        time.Time
	Ports                      []api.ProtectedPort
	NoPorts                    string
	Backends                   []backendRow
	Charts                     []chart
	Rows                       []api.Hold
	pager
}

type backendRow struct {
	Name                                string
	Holds, Failed, Connections, Longest figure
}

const holdsDrawn = 60

func protectParts(ctx context.Context, d *Dashboard, v view) ([]part, error) {
	p, err := d.protection.get(ctx)
	data := protectData{Off: api.ErrorOf(err), NoPorts: p.NoPorts}
	if err == nil {
		data.fill(p, v.query)
		if g, err := d.metrics.get(ctx); err == nil {
			data.count(g, p.Totals)
		}
	}
	return []part{{"figures", protectFigures(data)}, {"ports", protectPorts(data)}, {"holds", protectHolds(data)}, {"backends", protectBackends(data)}}, nil
}

func (d *protectData) fill(p api.Protection, q query) {
	d.Now, d.Ports = time.Now(), p.Ports
	for _, t := range p.Totals {
		d.Longest = max(d.Longest, t.Longest)
	}
	var waits []point
	for _, h := range slices.Backward(p.Holds[:min(holdsDrawn, len(p.Holds))]) {
		x := point{value: time.Duration(h.Longest).Seconds(), class: "a", title: h.At.UTC().Format("2 Jan 15:04") + ": " + took(h.Longest) + ", " + thousands(h.Connections) + " connections"}
		if h.Failed {
			x.class = "bad"
		}
		waits = append(waits, x)
	}
	if len(waits) > 0 {
		d.Charts = []chart{newChart("Longest wait, hold by hold", "the last "+strconv.Itoa(len(waits)), "newest", waits, .01, duration)}
	}
	d.Rows, d.pager = paginate(p.Holds, "/protect", q)
}

// portsOf lists the ports of a hold.
func portsOf(h api.Hold) string {
	var all []string
	for _, p := range h.Ports {
		all = append(all, strconv.Itoa(int(p)))
	}
	return strings.Join(all, ", ")
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
