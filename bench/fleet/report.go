package fleet

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"holdfast"
	"holdfast/bench"
)

// Report is the result of a run.
type Report struct {
	Result  bench.Result
	Details Details
}

// Details is Result.Details of this bench.
type Details struct {
	Acts   map[Act]int `json:"acts"`  // number of runs of each act
	Costs  []Cost      `json:"costs"` // by act, of those that happened
	Errors []Failure   `json:"errors"`
	// Back is the time from the end of the last act until all sessions were served.
	Back    holdfast.Millis `json:"back_ms"`
	Verdict Verdict         `json:"verdict"`
}

// Failure counts clients that could not connect for one reason.
type Failure struct {
	Act    Act    `json:"act"` // the last one that had begun; "" before the first
	Reason string `json:"reason"`
	Count  int    `json:"count"`
}

// FailedOnNotice counts the clients that could not connect after a notice.
func (d Details) FailedOnNotice() int {
	n := 0
	for _, f := range d.Errors {
		if f.Act.noticed() {
			n += f.Count
		}
	}
	return n
}

func (a Act) orNone() string {
	if a == "" {
		return "nothing yet"
	}
	return string(a)
}

// measured has the recordings of a run's parts.
type measured struct {
	began, ended time.Duration
	load         *load
	events       []event
	changes      []change
	engine       []float64 // create and start, in milliseconds
	bursts       []float64 // concurrent starts by the engine alone
}

func (x *experiment) report(machine bench.Machine, m measured, v Verdict) Report {
	all := handovers(m.events, m.changes, m.ended)
	d := Details{Verdict: v, Acts: map[Act]int{}, Errors: failures(m), Back: holdfast.Millis(x.back)}
	for _, e := range m.events {
		d.Acts[e.act]++
	}
	d.Costs = costs(m, all, d.Acts)
	r := bench.Result{Name: "fleet", Machine: machine, Failed: d.FailedOnNotice() + v.failed(), Details: d}
	engine, noticed := bench.NewRow("engine: create + start", "ms", m.engine), bench.NewRow("handover on notice", "ms", tookOf(all, Act.drains))
	alone := bench.NewRow(fmt.Sprintf("engine alone: of %d at once", len(m.bursts)), "ms", m.bursts)
	r.Rows = append(r.Rows, alone, engine, bench.NewRow("boot: claim to ready", "ms", boots(m)), noticed)
	for _, act := range allActs(true) {
		if took := tookOf(all, func(a Act) bool { return a == act }); len(took) > 0 && !act.drains() {
			r.Rows = append(r.Rows, bench.NewRow("handover, "+string(act), "ms", took))
		}
	}
	r.Rows = append(r.Rows, bench.NewRow("drain: all given up", "ms", released(m.events)), bench.NewRow("drain of a node", "ms", drains(m.events)))
	r.Rows = append(r.Rows, waits(m)...)
	if noticed.P99 > 0 {
		r.Score = engine.P99 / noticed.P99
	}
	r.Notes = append(x.notes(m, all), d.notes()...)
	r.Notes = append(r.Notes, m.capacity(all))
	if s := slowest(m.events); s != "" {
		r.Notes = append(r.Notes, s)
	}
	return Report{r, d}
}

// notes returns the details as sentences.
func (d Details) notes() []string {
	var out []string
	for _, f := range d.Errors {
		out = append(out, fmt.Sprintf("not connected after %s: %d × %s", f.Act.orNone(), f.Count, f.Reason))
	}
	if len(d.Errors) == 0 {
		out = append(out, "every client connected")
	}
	for _, c := range d.Costs {
		out = append(out, c.String())
	}
	if len(d.Costs) > 0 {
		out = append(out, fmt.Sprintf("after the last act all sessions were served within %.1f s", time.Duration(d.Back).Seconds()))
	}
	return append(out, d.Verdict.String())
}

func (x *experiment) notes(m measured, all []handover) []string {
	t := x.timing()
	notes := []string{
		fmt.Sprintf("%d agents, %d sessions, %g clients/s for %v, an act every %v (%s, seed %d), pools %s; renew %v, fence %v, ttl %v",
			x.o.Agents, x.o.Sessions, x.o.Rate, (m.ended - m.began).Round(time.Second), x.o.Every, x.o.Chaos, x.o.Seed, strings.Join(x.o.pools(), " "), t.Renew, t.Fence, t.TTL),
		fmt.Sprintf("%d connections were closed by the other side; their clients connected again", m.load.cuts),
	}
	if x.o.Sleep > 0 {
		slept, acts := 0, 0
		for _, e := range m.events {
			slept += e.asleep
			acts += min(e.asleep, 1)
		}
		notes = append(notes, fmt.Sprintf("sessions sleep after %v without data: %d slept on the nodes of %d acts as those began", x.o.Sleep, slept, acts))
	}
	if m.load.busy > 0 {
		notes = append(notes, fmt.Sprintf("%d clients were not started: %d were connecting already", m.load.busy, maxPending))
	}
	if gone := bench.NewRow("", "", tookOf(all, func(a Act) bool { return a == Gone })); gone.N > 0 {
		boot := bench.NewRow("", "", boots(m))
		notes = append(notes, fmt.Sprintf("machine gone: sessions were ready elsewhere after %.1f s (p99); ttl + 2 s + a boot (p99) is %.1f s",
			gone.P99/1000, (t.TTL+2*time.Second).Seconds()+boot.P99/1000))
	}
	if hit, kept := stayed(all, CutShort); hit > 0 {
		notes = append(notes, fmt.Sprintf("cut off from etcd for less than the fence: %d of %d sessions stayed as they were", kept, hit))
	}
	if hit, kept := stayed(all, Clone); hit > 0 {
		notes = append(notes, fmt.Sprintf("beside an agent on a copy of the machine: %d of %d sessions stayed as they were", kept, hit))
	}
	never, kept := 0, 0
	for _, h := range all {
		switch {
		case h.kept:
			kept++
		case h.took == 0:
			never++
		}
	}
	if kept > 0 {
		notes = append(notes, fmt.Sprintf("%d sessions stayed as they were through an act", kept))
	}
	if never > 0 {
		notes = append(notes, fmt.Sprintf("%d sessions were not ready again by the end", never))
	}
	return notes
}

// capacity returns the rate at which the engine starts containers, and the rate that
// the acts requested.
func (m measured) capacity(all []handover) string {
	alone := bench.NewRow("", "", m.bursts)
	return fmt.Sprintf("the engine alone started %d containers at %.1f a second; %.1f sessions a second were to be moved",
		alone.N, float64(alone.N)/alone.Max*1000, float64(len(all))/(m.ended-m.began).Seconds())
}

// slowest describes the steps of the slowest drain until all sessions were released,
// "" if no node drained.
func slowest(events []event) string {
	var worst event
	var took float64
	for _, e := range events {
		if r := released([]event{e}); len(r) > 0 && r[0] >= took {
			worst, took = e, r[0]
		}
	}
	if took == 0 {
		return ""
	}
	var steps []string
	for _, s := range worst.drain.Steps {
		steps = append(steps, fmt.Sprintf("%s %v (%d)", s.Name, time.Duration(s.Took).Round(time.Millisecond), s.Count))
		if s.Name == "release" {
			break
		}
	}
	return fmt.Sprintf("the slowest drain gave up its %d sessions after %.0f ms: %s", worst.drain.Owned, took, strings.Join(steps, ", "))
}

// stayed counts the sessions that an act hit, and those of them that stayed unchanged.
func stayed(all []handover, act Act) (hit, kept int) {
	for _, h := range all {
		if h.act == act {
			hit++
			if h.kept {
				kept++
			}
		}
	}
	return hit, kept
}

// during returns the last act that had begun before a moment, "" before the first.
func (m measured) during(at time.Duration) Act {
	var last Act
	for _, e := range m.events {
		if e.begin > at {
			break
		}
		last = e.act
	}
	return last
}

// failures counts the clients that could not connect, by the last act that had begun
// when they gave up.
func failures(m measured) []Failure {
	counts := map[Failure]int{}
	for _, a := range m.load.past {
		if a.reason != "" {
			counts[Failure{Act: m.during(a.end), Reason: a.reason}]++
		}
	}
	out := []Failure{}
	for f, n := range counts {
		f.Count = n
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b Failure) int { return b.Count - a.Count })
	return out
}

// waits returns the waits of the connected clients, in all and by the last act that had
// begun when they were answered.
func waits(m measured) []bench.Row {
	var all []float64
	by := map[Act][]float64{}
	for _, a := range m.load.past {
		if a.reason != "" {
			continue
		}
		took := millis(a.end - a.begin)
		all = append(all, took)
		by[m.during(a.end)] = append(by[m.during(a.end)], took)
	}
	rows := []bench.Row{bench.NewRow("client: to the first answer", "ms", all)}
	for _, act := range slices.Sorted(maps.Keys(by)) {
		rows = append(rows, bench.NewRow("client, after "+act.orNone(), "ms", by[act]))
	}
	return rows
}

// boots returns the boots that ended in the measured time, from the records.
func boots(m measured) []float64 {
	seen := map[holdfast.Epoch]bool{}
	var out []float64
	for _, c := range m.changes {
		o := c.owner
		if c.gone || o.State != holdfast.Ready || seen[o.Epoch] {
			continue
		}
		seen[o.Epoch] = true
		if c.at >= m.began && c.at <= m.ended {
			out = append(out, millis(time.Duration(o.Boot.Total())))
		}
	}
	return out
}

func tookOf(all []handover, of func(Act) bool) []float64 {
	var out []float64
	for _, h := range all {
		if h.took > 0 && of(h.act) {
			out = append(out, millis(h.took))
		}
	}
	return out
}

// released returns the times from the notice until the node had released all sessions.
func released(events []event) []float64 {
	var out []float64
	for _, e := range events {
		var took time.Duration
		for _, s := range e.drain.Steps {
			if !strings.Contains(s.Name, ":") { // a part of the step before it
				took += time.Duration(s.Took)
			}
			if s.Name == "release" {
				out = append(out, millis(took))
				break
			}
		}
	}
	return out
}

func drains(events []event) []float64 {
	var out []float64
	for _, e := range events {
		if e.act.drains() {
			out = append(out, millis(time.Duration(e.drain.Took)))
		}
	}
	return out
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
