package dashboard

import (
	"context"
	"fmt"
	"math"
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

// off is the error of a part that does not answer or is switched off.
type off struct{ Message, Hint string }

func offOf(err error) *off {
	if err == nil {
		return nil
	}
	e := api.ErrorOf(err)
	return &off{e.Message, e.Advice}
}

// gcData is the data of the page.
type gcData struct {
	Off             *off
	Enabled         bool
	Level           gc.Level
	Where           string // position between the marks
	Running         bool
	UnderWay        int
	Disks           []disk
	Suspended       string
	NoLinks         string
	Beside, Without besideRow
	Harm            string
	Counted         []counted
	Charts          []chart
	Cycles          []cycleRow
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

type cycleRow struct {
	At, When, Trigger, Took   string
	Planned, Deleted, Skipped string
	Freed, Suspended          string
	Forced                    int
	State, Error              string
	Notices                   []string
}

func gcParts(ctx context.Context, d *Dashboard, v view) ([]part, error) {
	c, err := d.collected.get(ctx)
	data := gcData{Off: offOf(err)}
	if err == nil {
		data.fill(c, v.query)
		if g, err := d.metrics(ctx); err == nil {
			data.count(g)
		}
	}
	return []part{{"notice", "gc-notice", data}, {"figures", "gc-figures", data}, {"harm", "gc-harm", data}, {"cycles", "gc-cycles", data}, {"since", "gc-since", data}}, nil
}

func (g *gcData) fill(c collection, q query) {
	s := c.status
	g.Enabled, g.Level, g.Running, g.UnderWay, g.Suspended = s.Enabled, s.Level, s.Running, s.UnderWay, duration(time.Duration(s.Suspended).Seconds())
	g.NoLinks, g.Beside, g.Without, g.Harm = s.NoLinks, besideOf(s.Beside), besideOf(s.Without), harmOf(s.Beside, s.Without)
	g.Where = map[gc.Level]string{gc.Roomy: "under low", gc.Between: "between low and high", gc.Pressed: "over high", gc.Critical: "over critical"}[s.Level]
	if s.Disk.Total > 0 {
		g.Disks = append(g.Disks, diskOf("bytes", s, s.Disk.Used(), s.Disk.Total, size))
	}
	if s.Disk.Inodes > 0 {
		g.Disks = append(g.Disks, diskOf("inodes", s, s.Disk.Inodes-s.Disk.FreeInodes, s.Disk.Inodes, func(n int64) string { return thousands(int(n)) }))
	}
	g.draw(c.cycles)
	shown, where := cut(c.cycles, "/gc", q)
	g.pager = where
	for _, x := range shown {
		g.Cycles = append(g.Cycles, cycleOf(x))
	}
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

// besideRow are the spin-ups with a deletion beside them, or those without.
type besideRow struct{ Count, Slow, Share, P50, P99 string }

func besideOf(f gc.Figures) besideRow {
	r := besideRow{Count: thousands(f.Count), Slow: thousands(f.Slow), Share: "–", P50: "–", P99: "–"}
	if f.Count > 0 {
		r.Share, r.P50, r.P99 = share(f.SlowPercent/100), took(f.P50), took(f.P99)
	}
	return r
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
	return "Beside a deletion no more spin-ups were slow than without."
}

// draw draws the last cycles, the oldest first.
func (g *gcData) draw(cycles []gc.Cycle) {
	var freed, waited []point
	for i := min(cyclesShown, len(cycles)) - 1; i >= 0; i-- {
		r := cycleOf(cycles[i])
		freed = append(freed, point{value: float64(max(0, cycles[i].After.Free-cycles[i].Before.Free)) / (1 << 30), class: "a", title: r.When + ": " + r.Freed})
		waited = append(waited, point{value: time.Duration(cycles[i].Suspended).Seconds(), class: "warn", title: r.When + ": " + r.Suspended})
	}
	if len(freed) == 0 {
		return
	}
	g.Charts = []chart{newChart("Freed, by cycle", freed, .1, func(v float64) string { return fmt.Sprintf("%g GiB", v) }),
		newChart("Waited for spin-ups", waited, 1, duration)}
	for i := range g.Charts {
		g.Charts[i].From, g.Charts[i].To = fmt.Sprintf("the last %d", len(freed)), "newest"
	}
}

func cycleOf(c gc.Cycle) cycleRow {
	r := cycleRow{At: stamp(c.Begun), When: c.Begun.UTC().Format("2 Jan 15:04:05"), Trigger: string(c.Trigger), Took: duration(time.Duration(c.Took).Seconds()),
		Planned: thousands(c.Planned), Deleted: thousands(len(c.Deleted)), Skipped: thousands(len(c.Skipped)),
		Freed: "–", Suspended: duration(time.Duration(c.Suspended).Seconds()), State: "done", Error: c.Error, Notices: c.Notices}
	if c.After.Total > 0 {
		if n := c.After.Free - c.Before.Free; n >= 0 {
			r.Freed = size(n)
		} else {
			r.Freed = "−" + size(-n)
		}
	}
	for _, o := range c.Deleted {
		if o.Forced {
			r.Forced++
		}
	}
	switch {
	case !c.Ended:
		r.State, r.Took, r.Freed = "not ended", "–", "–"
	case c.Error != "":
		r.State = "failed"
	}
	return r
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
