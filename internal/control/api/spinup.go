package api

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"holdfast"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/underway"
)

// Bounds of answers about spin-ups.
const (
	DefaultSpinups = 50   // records in a list
	MaxSpinups     = 1000 // records in a list, if the caller asks for them
	// DefaultUnderWay and MaxUnderWay are how long an announced spin-up counts
	// if it is not ended.
	DefaultUnderWay = 5 * time.Minute
	MaxUnderWay     = underway.MaxLife
)

// Spinups are the records of the spin-ups on the agent's host.
type Spinups interface {
	// List lists records, the newest first, without the layers of pulls.
	List(f spinup.Filter) ([]spinup.Record, error)

	// Get returns the record with the id, or with the only id that begins with
	// it. holdfast.ErrNotFound.
	Get(id string) (spinup.Record, error)

	// Report returns how often phases were slow. holdfast.ErrNotFound if the
	// question names an unknown group.
	Report(q spinup.Question) (spinup.Report, error)

	// Sketch is Report in the form in which answers of several hosts are merged.
	Sketch(q spinup.Question) (spinup.Sketch, error)

	// Rules are the agent's rules for slow phases.
	Rules() spinup.Rules

	// Add keeps a record that was checked. It returns when the record is on
	// disk. holdfast.ErrBusy while the records are not open.
	Add(r spinup.Record) error
}

// UnderWay are the spin-ups that have not ended. *underway.List is one.
type UnderWay interface {
	// Active lists them, the oldest first.
	Active() []underway.Entry

	// Begin counts a spin-up as under way until End, or for life.
	// holdfast.ErrBusy if there are too many.
	Begin(kind, name string, life time.Duration) (underway.Entry, error)

	// End ends a spin-up that Begin began. holdfast.ErrNotFound.
	End(id string) error
}

// SpinupList is the answer to a list of spin-ups.
type SpinupList struct {
	Spinups []JudgedSpinup `json:"spinups"`
}

// JudgedSpinup is a record with the phases that the agent's rules call slow.
type JudgedSpinup struct {
	spinup.Record
	Slow []spinup.Phase `json:"slow"`
}

// SpinupsUnderWay is the answer to a list of spin-ups that have not ended.
type SpinupsUnderWay struct {
	UnderWay []underway.Entry `json:"under_way"`
}

// BeginSpinupRequest announces a spin-up.
type BeginSpinupRequest struct {
	// Name is for the operator; at most 128 bytes.
	Name string `json:"name,omitempty"`
	// Kind is pull or run for Holdfast's own commands, and absent for all other
	// programs.
	Kind spinup.Kind `json:"kind,omitempty"`
	// For is how long it counts if it is not ended, up to MaxUnderWay; 0 is
	// DefaultUnderWay.
	For holdfast.Millis `json:"for_ms,omitempty"`
}

// SpinupAdded is the answer when a record is kept.
type SpinupAdded struct {
	ID string `json:"id"`
}

// filterQuery are the parameters that select records.
var filterQuery = []param{
	{"since", "only those that began at that time or later", time.Time{}},
	{"until", "only those that began before that time", time.Time{}},
	{"kind", "only of this kind", namesOf(spinup.Kinds())},
	{"image", "only of this image; without a tag: of any tag", ""},
	{"job", "only of this session or run", ""},
	{"outcome", "only with this outcome", namesOf(spinup.Outcomes())},
	{"slow", "only those with a slow phase", false},
	{"experiment", "only those with an arm of this experiment", ""},
}

// FleetSpinups answers a question about the spin-ups of all nodes of the fleet.
// holdfast.ErrNotFound if the question names an unknown group.
type FleetSpinups func(ctx context.Context, q spinup.Question) (spinup.FleetReport, error)

// statsQuery are the parameters of statistics.
var statsQuery = append(slices.Clone(filterQuery),
	param{"by", "what makes a group", namesOf(spinup.Groupings())},
	param{"against", "the group that the others are compared with; the largest if absent", ""},
	param{"at", "compare two groups: spin-ups that began before that time, and the rest", time.Time{}})

type spinupHandlers struct {
	spinups  Spinups
	fleet    FleetSpinups
	underWay UnderWay
}

func spinupRoutes(s Spinups, f FleetSpinups, u UnderWay) []route {
	h := spinupHandlers{s, f, u}
	return []route{
		{method: "GET", path: "/v1/spinups", id: "listSpinups", summary: "Spin-ups on this host, the newest first, without the layers of their pulls.",
			access: forReader, limit: limitAsk, answer: SpinupList{},
			query:  append(slices.Clone(filterQuery), param{"limit", "at most that many; 50 if absent", span{1, MaxSpinups}}),
			handle: asking(h.list)},
		{method: "GET", path: "/v1/spinups/{id}", id: "getSpinup", summary: "One spin-up, by its id or the beginning of it, with every layer.",
			access: forReader, limit: limitAsk, answer: JudgedSpinup{}, handle: asking(h.get)},
		{method: "POST", path: "/v1/spinups", id: "addSpinup", summary: "Keep the record of a spin-up that a command made.",
			access: forAdmin, limit: limitAsk, request: spinup.Record{}, answer: SpinupAdded{}, handle: doing(h.add)},
		{method: "GET", path: "/v1/spinup-stats", id: "spinupStats", summary: "How often each phase was slow, in groups that are compared with the first, or before and after a time.",
			access: forReader, limit: limitStats, answer: spinup.Report{}, query: statsQuery, handle: asking(h.stats)},
		{method: "GET", path: "/v1/spinup-stats/fleet", id: "fleetSpinupStats", summary: "The statistics of all nodes of the fleet, which are asked at once. Nodes that do not answer are named.",
			access: forReader, limit: limitStats, answer: spinup.FleetReport{}, query: statsQuery, handle: asking(h.fleetStats)},
		{method: "GET", path: "/v1/nodes/{node}/spinup-sketch", id: "spinupSketch", summary: "The statistics of the given node's host in the form in which those of several hosts are merged.",
			access: forReader, at: atItsNode, limit: limitStats, answer: spinup.Sketch{}, query: statsQuery, handle: asking(h.sketch)},
		{method: "GET", path: "/v1/spinups-under-way", id: "spinupsUnderWay", summary: "Spin-ups on this host that have not ended.",
			access: forReader, limit: limitAsk, answer: SpinupsUnderWay{}, handle: asking(h.active)},
		{method: "POST", path: "/v1/spinups-under-way", id: "beginSpinup", summary: "Announce a spin-up: garbage collection waits until it is ended, or its time is up.",
			access: forAdmin, limit: limitAsk, request: BeginSpinupRequest{}, answer: underway.Entry{}, handle: doing(h.begin)},
		{method: "POST", path: "/v1/spinups-under-way/{id}/end", id: "endSpinup", summary: "End an announced spin-up.",
			access: forAdmin, limit: limitAsk, request: Empty{}, status: http.StatusNoContent, handle: changing(h.end)},
	}
}

func (h spinupHandlers) list(r *http.Request) (list SpinupList, err error) {
	f, err := h.filter(r.URL.Query())
	if err != nil {
		return list, err
	}
	f.Limit = DefaultSpinups
	if v := r.URL.Query().Get("limit"); r.URL.Query().Has("limit") {
		if f.Limit, err = strconv.Atoi(v); err != nil || f.Limit < 1 || f.Limit > MaxSpinups {
			return list, badQuery("limit", v, fmt.Sprintf("a whole number from 1 to %d", MaxSpinups))
		}
	}
	records, err := h.spinups.List(f)
	list.Spinups = []JudgedSpinup{}
	for _, one := range records {
		list.Spinups = append(list.Spinups, Judge(one, h.spinups.Rules()))
	}
	return list, err
}

// Judge returns a record as the API shows it.
func Judge(r spinup.Record, rules spinup.Rules) JudgedSpinup {
	if r.Times == nil {
		r.Times = map[spinup.Phase]holdfast.Millis{}
	}
	if r.Pull != nil {
		p := *r.Pull
		p.Layers = notNil(p.Layers)
		r.Pull = &p
	}
	return JudgedSpinup{Record: r, Slow: notNil(rules.Slow(r))}
}

func (h spinupHandlers) get(r *http.Request) (JudgedSpinup, error) {
	one, err := h.spinups.Get(r.PathValue("id"))
	if err != nil {
		return JudgedSpinup{}, err
	}
	return Judge(one, h.spinups.Rules()), nil
}

func (h spinupHandlers) add(r *http.Request, one spinup.Record) (SpinupAdded, error) {
	note(r.Context(), "spinup", bounded(one.ID))
	if err := one.Validate(); err != nil {
		return SpinupAdded{}, badRequest("the record: %v", err)
	}
	return SpinupAdded{one.ID}, h.spinups.Add(one)
}

// question reads the parameters of statsQuery.
func (h spinupHandlers) question(r *http.Request) (q spinup.Question, err error) {
	values := r.URL.Query()
	q = spinup.Question{By: spinup.By(values.Get("by")), Against: values.Get("against")}
	if q.Filter, err = h.filter(values); err != nil {
		return q, err
	}
	if q.At, err = timeOf(values, "at"); err != nil {
		return q, err
	}
	if err := q.Check(); err != nil {
		return q, badRequest("%v", err)
	}
	return q, nil
}

func (h spinupHandlers) stats(r *http.Request) (spinup.Report, error) {
	q, err := h.question(r)
	if err != nil {
		return spinup.Report{}, err
	}
	return h.spinups.Report(q)
}

func (h spinupHandlers) fleetStats(r *http.Request) (spinup.FleetReport, error) {
	q, err := h.question(r)
	switch {
	case err != nil:
		return spinup.FleetReport{}, err
	case h.fleet == nil:
		return spinup.FleetReport{}, holdfast.WithHint(fmt.Errorf("the spin-ups of other hosts: %w", holdfast.ErrNotFound), "ask the agent of a node, which knows the other nodes")
	}
	return h.fleet(r.Context(), q)
}

func (h spinupHandlers) sketch(r *http.Request) (spinup.Sketch, error) {
	q, err := h.question(r)
	if err != nil {
		return spinup.Sketch{}, err
	}
	return h.spinups.Sketch(q)
}

func (h spinupHandlers) active(*http.Request) (SpinupsUnderWay, error) {
	return SpinupsUnderWay{notNil(h.underWay.Active())}, nil
}

func (h spinupHandlers) begin(r *http.Request, q BeginSpinupRequest) (none underway.Entry, err error) {
	note(r.Context(), "name", bounded(q.Name))
	life := cmp.Or(time.Duration(q.For), DefaultUnderWay)
	switch {
	case !slices.Contains([]spinup.Kind{"", spinup.ForPull, spinup.ForRun}, q.Kind):
		return none, badRequest("kind is %q, it must be pull, run or absent", bounded(string(q.Kind)))
	case life < 0 || life > MaxUnderWay:
		return none, badRequest("the time is %v, it must be over 0 and at most %v", life, MaxUnderWay)
	case len(q.Name) > underway.MaxName:
		return none, badRequest("the name has %d bytes, at most %d are allowed", len(q.Name), underway.MaxName)
	}
	return h.underWay.Begin(cmp.Or(string(q.Kind), underway.Outside), q.Name, life)
}

func (h spinupHandlers) end(r *http.Request, _ Empty) error { return h.underWay.End(r.PathValue("id")) }

// filter reads the parameters of filterQuery.
func (h spinupHandlers) filter(q url.Values) (spinup.Filter, error) {
	f := spinup.Filter{Kind: spinup.Kind(q.Get("kind")), Image: q.Get("image"), Job: q.Get("job"), Outcome: spinup.Outcome(q.Get("outcome")), Experiment: q.Get("experiment")}
	if f.Kind != "" && !slices.Contains(spinup.Kinds(), f.Kind) {
		return f, badQuery("kind", string(f.Kind), "session, pull, run or other")
	}
	if f.Outcome != "" && !slices.Contains(spinup.Outcomes(), f.Outcome) {
		return f, badQuery("outcome", string(f.Outcome), "ok, failed or stopped")
	}
	var err1, err2 error
	f.Since, err1 = timeOf(q, "since")
	f.Until, err2 = timeOf(q, "until")
	slow, err3 := boolOf(q, "slow")
	if slow {
		rules := h.spinups.Rules()
		f.Slow = &rules
	}
	return f, cmp.Or(err1, err2, err3)
}
