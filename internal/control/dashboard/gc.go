package dashboard

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"holdfast/internal/control/api"
	"holdfast/internal/hosts/gc"
)

// collection is the data of garbage collection.
type collection struct {
	status gc.Status
	cycles []gc.Cycle // the newest first
}

func readCollection(ctx context.Context, s Source) (c collection, err error) {
	if c.status, err = s.GCStatus(ctx); err != nil {
		return c, err
	}
	c.cycles, err = s.GCHistory(maxCycles)
	return c, err
}

// Bounds of the page.
const (
	maxCycles   = 200 // read from the agent
	cyclesShown = 30  // shown in the charts
)

// gcData is the data of the page.
type gcData struct {
	gc.Status
	Off     *api.Error // why garbage collection does not answer
	Where   string     // position between the marks
	Disks   []disk
	Harm    string
	Counted []counted
	Charts  []chart
	Cycles  []gc.Cycle
	pager
}

// disk is the use of a disk, in bytes or inodes, as a bar with marks.
type disk struct {
	Name, Used, Of, Share string
	Width                 float64 // of the bar, in thousandths
	Marks                 []mark
}

type mark struct {
	Name, Text string
	X          float64
}

// counted is a metric of the collector.
type counted struct {
	Name string
	N    figure
}

func gcParts(ctx context.Context, d *Dashboard, v view) ([]part, error) {
	c, err := d.collected.get(ctx)
	data := gcData{Off: api.ErrorOf(err)}
	if err == nil {
		data.fill(c, v.query)
		if g, err := d.metrics.get(ctx); err == nil {
			data.count(g)
		}
	}
	return []part{{"notice", gcNotice(data)}, {"figures", gcFigures(data)}, {"harm", gcHarm(data)}, {"cycles", gcCycles(data)}, {"since", gcSince(data)}}, nil
}

func (g *gcData) fill(c collection, q query) {
	s := c.status
	g.Status, g.Harm = s, harmOf(s.Beside, s.Without)
	g.Where = map[gc.Level]string{gc.Roomy: "under low", gc.Between: "between low and high", gc.Pressed: "over high", gc.Critical: "over critical"}[s.Level]
	if s.Disk.Total > 0 {
		g.Disks = append(g.Disks, diskOf("bytes", s, s.Disk.Used(), s.Disk.Total, size))
	}
	if s.Disk.Inodes > 0 {
		g.Disks = append(g.Disks, diskOf("inodes", s, s.Disk.Inodes-s.Disk.FreeInodes, s.Disk.Inodes, thousands[int64]))
	}
	g.draw(c.cycles)
	g.Cycles, g.pager = paginate(c.cycles, "/gc", q)
}

// levelClass is the colour of a level.
func levelClass(l gc.Level) string {
	switch l {
	case gc.Roomy:
		return "up"
	case gc.Critical:
		return "trouble"
	}
	return "degraded"
}

func diskOf(what string, s gc.Status, used, total int64, text func(int64) string) disk {
	d := disk{Name: what, Used: text(used), Of: text(total), Share: share(float64(used) / float64(total)), Width: round(1000 * float64(used) / float64(total))}
	for _, m := range []struct {
		name string
		at   gc.Amount
	}{{"low", s.Low}, {"high", s.High}, {"critical", s.Critical}} {
		if what == "inodes" && m.at.Percent == 0 { // a size in bytes does not apply to inodes
			continue
		}
		d.Marks = append(d.Marks, mark{m.name, m.at.String(), math.Min(1000, round(1000*float64(m.at.Of(total))/float64(total)))})
	}
	return d
}

// harmOf describes the effect of deletions on spin-ups, if there are enough spin-ups.
func harmOf(beside, without gc.Figures) string {
	const few = 20
	switch {
	case beside.Count < few || without.Count < few:
		return fmt.Sprintf("Too few spin-ups for a comparison: each side needs at least %d.", few)
	case beside.SlowPercent > without.SlowPercent:
		return fmt.Sprintf("Beside a deletion %.1f percentage points more spin-ups were slow.", beside.SlowPercent-without.SlowPercent)
	}
	return "Spin-ups beside a deletion were not slow more often than the others."
}

// draw draws the last cycles, the oldest first.
func (g *gcData) draw(cycles []gc.Cycle) {
	var gained, waited []point
	for _, c := range slices.Backward(cycles[:min(cyclesShown, len(cycles))]) {
		gained = append(gained, point{value: float64(max(0, c.After.Free-c.Before.Free)) / (1 << 30), class: "a", title: when(c.Begun) + ": " + freed(c)})
		waited = append(waited, point{value: time.Duration(c.Suspended).Seconds(), class: "warn", title: when(c.Begun) + ": " + took(c.Suspended)})
	}
	if len(gained) == 0 {
		return
	}
	first := fmt.Sprintf("the last %d", len(gained))
	g.Charts = []chart{newChart("Freed, by cycle", first, "newest", gained, .1, func(v float64) string { return fmt.Sprintf("%g GiB", v) }),
		newChart("Waited for spin-ups", first, "newest", waited, 1, duration)}
}

// freed formats how much a cycle freed.
func freed(c gc.Cycle) string {
	n := c.After.Free - c.Before.Free
	switch {
	case !c.Ended || c.After.Total == 0:
		return "–"
	case n < 0:
		return "−" + size(-n)
	}
	return size(n)
}

// forced counts the deletions of a cycle that waited for no spin-up.
func forced(c gc.Cycle) (n int) {
	for _, o := range c.Deleted {
		if o.Forced {
			n++
		}
	}
	return n
}

// count sets the figures from the metrics.
func (g *gcData) count(m gathered) {
	bytes := func(v float64) string { return size(int64(v)) }
	for _, x := range []struct {
		name, metric string
		text         func(float64) string
		labels       []string
	}{
		{"Cycles", "holdfast_gc_cycles_total", whole, nil},
		{"that failed", "holdfast_gc_cycles_total", whole, []string{"result=failed"}},
		{"Deleted", "holdfast_gc_deletions_total", whole, []string{"result=deleted"}},
		{"Skipped", "holdfast_gc_deletions_total", whole, []string{"result=skipped"}},
		{"Deleted beside spin-ups: the disk was critically full", "holdfast_gc_forced_total", whole, nil},
		{"Bytes freed", "holdfast_gc_freed_bytes_total", bytes, nil},
		{"Time that deletions waited for spin-ups", "holdfast_gc_suspended_seconds_total", duration, nil},
		{"Slow spin-ups beside a deletion", "holdfast_gc_slow_spinups_total", whole, []string{"beside_deletion=yes"}},
		{"Slow spin-ups without a deletion", "holdfast_gc_slow_spinups_total", whole, []string{"beside_deletion=no"}},
	} {
		if f := m.figure(x.text, x.metric, x.labels...); f.Metric != "" {
			g.Counted = append(g.Counted, counted{x.name, f})
		}
	}
}
