package dashboard

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"holdfast/internal/control/api"
	"holdfast/internal/hosts/spinup"
)

// spinFleetData is the data of the page of the whole fleet's spin-ups.
type spinFleetData struct {
	Off      *api.Error
	Nodes    int
	NoAnswer []spinup.Missing
	More     int // nodes without an answer that are not shown
	Count    string
	By       string
	Bys      []choice
	Groups   []spinRow
	LeftOut  int
}

func spinFleetParts(ctx context.Context, d *Dashboard, v view) ([]part, error) {
	by := spinup.ByHost
	if b := spinup.By(v.query.own["by"]); slices.Contains(spinup.Groupings(), b) {
		by = b
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	data := spinFleetData{By: string(by)}
	for _, b := range spinup.Groupings() {
		data.Bys = append(data.Bys, choice{string(b), v.query.with("/spinup/fleet", "by", string(b)), b == by})
	}
	r, err := d.fleetStats(ctx, spinup.Question{By: by})
	if data.Off = api.ErrorOf(err); data.Off == nil {
		data.fill(r)
	}
	return []part{{"fleet", fleetSpinups(data)}}, nil
}

// fleetStats asks all nodes, for a few pages at once only.
func (d *Dashboard) fleetStats(ctx context.Context, q spinup.Question) (spinup.FleetReport, error) {
	if d.source.FleetSpinups == nil {
		return spinup.FleetReport{}, &api.Error{Code: api.CodeNotFound, Message: "this program knows no other hosts"}
	}
	select {
	case d.heavy <- struct{}{}:
		defer func() { <-d.heavy }()
	case <-ctx.Done():
		return spinup.FleetReport{}, ctx.Err()
	}
	return d.source.FleetSpinups(ctx, q)
}

func (s *spinFleetData) fill(r spinup.FleetReport) {
	s.Nodes, s.Count = r.Nodes, thousands(r.Count)
	s.More = max(0, len(r.NoAnswer)-nodesShown)
	s.NoAnswer = r.NoAnswer[:len(r.NoAnswer)-s.More]
	shown := r.Groups[:min(len(r.Groups), maxSpinGroups)]
	s.LeftOut = r.LeftOut + len(r.Groups) - len(shown)
	for _, g := range shown {
		row := spinRow{Name: g.Name, Count: thousands(g.Count)}
		for _, phase := range phases() {
			var t tally
			if i := slices.IndexFunc(g.Phases, func(p spinup.PhaseStats) bool { return p.Phase == phase }); i >= 0 {
				t = tally{g.Phases[i].Judged, g.Phases[i].Slow}
			}
			row.Cells = append(row.Cells, t.cell(""))
		}
		s.Groups = append(s.Groups, row)
	}
}

// missing names the nodes that did not answer.
func (s spinFleetData) missing() string {
	var all []string
	for _, n := range s.NoAnswer {
		all = append(all, string(n.Node)+": "+n.Why)
	}
	if s.More > 0 {
		all = append(all, fmt.Sprintf("and %d more", s.More))
	}
	return strings.Join(all, "; ")
}
