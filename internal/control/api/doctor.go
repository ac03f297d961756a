package api

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"time"

	"holdfast"
	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/baseline"
	"holdfast/internal/hosts/doctor/cure"
	"holdfast/internal/hosts/doctor/profile"
	"holdfast/internal/hosts/doctor/ranking"
	"holdfast/internal/hosts/doctor/recordings"
	"holdfast/internal/hosts/doctor/schedule"
	"holdfast/internal/hosts/doctor/watch"
)

// Doctor diagnoses the agent's host.
type Doctor interface {
	// Status returns the current diagnosis of the host.
	Status(ctx context.Context) (DoctorStatus, error)

	// History returns the diagnosis since the given time, at most limit events (0: all
	// that are kept).
	History(since time.Time, limit int) (watch.History, error)

	// Events yields changes of findings until ctx is done; then the channel is
	// closed. holdfast.ErrBusy.
	Events(ctx context.Context) (<-chan watch.Event, error)

	// Ranking returns the facts that separate the fleet's slow nodes from its
	// fast ones.
	Ranking(ctx context.Context, by ranking.By) (ranking.Ranking, error)

	// Baselines lists the baselines of the fleet and of this host, by name.
	Baselines(ctx context.Context) ([]baseline.Baseline, error)

	// SaveBaseline keeps a baseline for the whole fleet. It replaces one of the
	// same name.
	SaveBaseline(ctx context.Context, b baseline.Baseline) error

	// RemoveBaseline removes a baseline. holdfast.ErrNotFound.
	RemoveBaseline(ctx context.Context, name string) error

	// Cures returns the cures that the agent carries out by itself, and those that were
	// carried out on this host, the newest first, at most limit (0: all that are kept).
	Cures(limit int) ([]schedule.State, []cure.Report, error)

	// AllowCure lets a scheduled cure run again that was stopped. holdfast.ErrNotFound.
	AllowCure(name string) error
}

// DoctorOff is a Doctor and Recordings for an agent without a doctor. Each
// method returns holdfast.ErrNotFound with a hint.
type DoctorOff struct{}

func doctorOff() error {
	return holdfast.WithHint(fmt.Errorf("the agent's doctor is switched off: %w", holdfast.ErrNotFound), "set doctor.enabled; holdfast doctor works without it")
}

// Status implements Doctor.
func (DoctorOff) Status(context.Context) (s DoctorStatus, err error) { return s, doctorOff() }

// History implements Doctor.
func (DoctorOff) History(time.Time, int) (h watch.History, err error) { return h, doctorOff() }

// Events implements Doctor.
func (DoctorOff) Events(context.Context) (<-chan watch.Event, error) { return nil, doctorOff() }

// Ranking implements Doctor.
func (DoctorOff) Ranking(context.Context, ranking.By) (r ranking.Ranking, err error) {
	return r, doctorOff()
}

// Baselines implements Doctor.
func (DoctorOff) Baselines(context.Context) ([]baseline.Baseline, error) { return nil, doctorOff() }

// SaveBaseline implements Doctor.
func (DoctorOff) SaveBaseline(context.Context, baseline.Baseline) error { return doctorOff() }

// RemoveBaseline implements Doctor.
func (DoctorOff) RemoveBaseline(context.Context, string) error { return doctorOff() }

// Cures implements Doctor.
func (DoctorOff) Cures(int) ([]schedule.State, []cure.Report, error) { return nil, nil, doctorOff() }

// AllowCure implements Doctor.
func (DoctorOff) AllowCure(string) error { return doctorOff() }

// List implements Recordings.
func (DoctorOff) List() ([]recordings.Recording, error) { return nil, doctorOff() }

// Open implements Recordings.
func (DoctorOff) Open(string) (*profile.Profile, error) { return nil, doctorOff() }

// Record implements Recordings.
func (DoctorOff) Record(context.Context, recordings.Request) (r recordings.Recording, err error) {
	return r, doctorOff()
}

// DoctorStatus is the current diagnosis of an agent's host.
type DoctorStatus struct {
	watch.Status
	Node   holdfast.NodeID `json:"node"`
	Kernel string          `json:"kernel"`
	Role   string          `json:"role,omitempty"`
	// Degraded is why containers are slow on this host, "" if they are not known
	// to be slow.
	Degraded      string    `json:"degraded,omitempty"`
	DegradedSince time.Time `json:"degraded_since,omitzero"`
	// Resting says that the node gets no new sessions because it is degraded.
	Resting bool `json:"resting"`
}

// Baselines is the answer to a list of baselines.
type Baselines struct {
	Baselines []baseline.Baseline `json:"baselines"`
}

// BaselineName names a baseline.
type BaselineName struct {
	Name string `json:"name"`
}

// DoctorCures are the cures on an agent's host.
type DoctorCures struct {
	Scheduled []schedule.State `json:"scheduled"` // in the order of the configuration
	Past      []cure.Report    `json:"past"`      // that were carried out, the newest first
}

// CureName names a scheduled cure.
type CureName struct {
	Cure string `json:"cure"`
}

type doctorHandlers struct{ doctor Doctor }

func doctorRoutes(d Doctor) []route {
	h := doctorHandlers{d}
	return []route{
		{method: "GET", path: "/v1/doctor", id: "doctorStatus", summary: "The doctor's current diagnosis of this host.",
			access: forReader, limit: limitAsk, answer: DoctorStatus{}, handle: asking(h.status)},
		{method: "GET", path: "/v1/nodes/{node}/doctor", id: "doctorStatusByID", summary: "As doctorStatus, of the given node's host.",
			access: forReader, at: atItsNode, limit: limitAsk, answer: DoctorStatus{}, handle: asking(h.status)},
		{method: "GET", path: "/v1/doctor/history", id: "doctorHistory", summary: "Findings that began, changed and ended on this host, the newest first.",
			access: forReader, limit: limitAsk, answer: watch.History{}, handle: asking(h.history),
			query: []param{
				{"since", "only those of that time or later", time.Time{}},
				limitParam,
				{"samples", "also the host's facts over time", false},
			}},
		{method: "GET", path: "/v1/doctor/events", id: "doctorEvents", summary: "Findings as they begin, change and end; one line for each. The stream ends if its reader is too slow.",
			access: forReader, stream: true, answer: watch.Event{}, media: mediaNDJSON, handle: h.events},
		{method: "GET", path: "/v1/doctor/fleet", id: "doctorFleet", summary: "The facts that separate the fleet's slow nodes from its fast ones.",
			access: forReader, limit: limitStats, answer: ranking.Ranking{}, handle: asking(h.ranking),
			query: []param{{"by", "how nodes are split: by p50 or p99 of a container's create and start, or by slow, the share of slow spin-ups; p50 if absent", oneOf{string(ranking.ByP50), string(ranking.ByP99), string(ranking.BySlow)}}}},
		{method: "GET", path: "/v1/doctor/baselines", id: "listBaselines", summary: "Baselines of healthy hosts, by name.",
			access: forReader, limit: limitAsk, answer: Baselines{}, handle: asking(h.baselines)},
		{method: "POST", path: "/v1/doctor/baselines", id: "saveBaseline", summary: "Keep a baseline for the whole fleet; replaces one of the same name.",
			access: forAdmin, limit: limitAsk, request: baseline.Baseline{}, status: http.StatusNoContent, handle: changing(h.saveBaseline)},
		{method: "POST", path: "/v1/doctor/baselines/remove", id: "removeBaseline", summary: "Remove a baseline.",
			access: forAdmin, limit: limitAsk, request: BaselineName{}, status: http.StatusNoContent, handle: changing(h.removeBaseline)},
		{method: "GET", path: "/v1/doctor/cures", id: "doctorCures", summary: "The cures that the agent carries out by itself, and those that were carried out on this host, the newest first.",
			access: forReader, limit: limitAsk, answer: DoctorCures{}, handle: asking(h.cures), query: []param{limitParam}},
		{method: "POST", path: "/v1/doctor/cures/allow", id: "allowCure", summary: "Let a scheduled cure run again that was stopped because it did harm.",
			access: forAdmin, limit: limitAsk, request: CureName{}, status: http.StatusNoContent, handle: changing(h.allowCure)},
	}
}

func (h doctorHandlers) status(r *http.Request) (DoctorStatus, error) {
	st, err := h.doctor.Status(r.Context())
	st.Findings, st.Facts, st.Checked = notNil(st.Findings), notNil(st.Facts), notNil(st.Checked)
	st.Gaps, st.Bursts = notNil(st.Gaps), notNil(st.Bursts)
	for i := range st.Findings {
		st.Findings[i].Finding = whole(st.Findings[i].Finding)
	}
	return st, err
}

// whole returns a finding whose lists are not nil.
func whole(f doctor.Finding) doctor.Finding {
	f.Evidence, f.Cures = notNil(f.Evidence), notNil(f.Cures)
	return f
}

func (h doctorHandlers) history(r *http.Request) (watch.History, error) {
	q := r.URL.Query()
	since, err1 := timeOf(q, "since")
	limit, err2 := limitOf(r)
	samples, err3 := boolOf(q, "samples")
	if err := cmp.Or(err1, err2, err3); err != nil {
		return watch.History{}, err
	}
	all, err := h.doctor.History(since, limit)
	all.Events, all.Samples = notNil(all.Events), notNil(all.Samples)
	for i := range all.Events {
		all.Events[i].Finding = whole(all.Events[i].Finding)
	}
	if !samples {
		all.Samples = []watch.Sample{}
	}
	return all, err
}

// events has no deadline: there may be no event for days.
func (h doctorHandlers) events(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	ch, err := h.doctor.Events(ctx)
	if err != nil {
		return err
	}
	lines := &events{stream: stream{w: w, media: mediaNDJSON}}
	lines.begin()
	_ = http.NewResponseController(w).Flush() // tells the client that events follow; an error shows at the first line
	for e := range ch {
		e.Finding = whole(e.Finding)
		if lines.send(e); lines.lost {
			return nil
		}
	}
	return nil
}

func (h doctorHandlers) ranking(r *http.Request) (ranking.Ranking, error) {
	by, err := ranking.ParseBy(r.URL.Query().Get("by"))
	if err != nil {
		return ranking.Ranking{}, badRequest("%s", bounded(err.Error()))
	}
	all, err := h.doctor.Ranking(r.Context(), by)
	all.Nodes, all.LeftOut, all.Facts, all.Same = notNil(all.Nodes), notNil(all.LeftOut), notNil(all.Facts), notNil(all.Same)
	return all, err
}

func (h doctorHandlers) baselines(r *http.Request) (Baselines, error) {
	all, err := h.doctor.Baselines(r.Context())
	return Baselines{notNil(all)}, err
}

func (h doctorHandlers) saveBaseline(r *http.Request, b baseline.Baseline) error {
	note(r.Context(), "baseline", bounded(b.Name))
	if err := b.Validate(); err != nil {
		return badRequest("%v", err)
	}
	return h.doctor.SaveBaseline(r.Context(), b)
}

func (h doctorHandlers) removeBaseline(r *http.Request, q BaselineName) error {
	note(r.Context(), "baseline", bounded(q.Name))
	if err := baseline.CheckName(q.Name); err != nil {
		return badRequest("%v", err)
	}
	return h.doctor.RemoveBaseline(r.Context(), q.Name)
}

func (h doctorHandlers) cures(r *http.Request) (DoctorCures, error) {
	limit, err := limitOf(r)
	if err != nil {
		return DoctorCures{}, err
	}
	scheduled, past, err := h.doctor.Cures(limit)
	past = notNil(past)
	for i := range past {
		past[i].Plan.Does = notNil(past[i].Plan.Does)
	}
	return DoctorCures{notNil(scheduled), past}, err
}

func (h doctorHandlers) allowCure(r *http.Request, q CureName) error {
	note(r.Context(), "cure", bounded(q.Cure))
	return h.doctor.AllowCure(q.Cure)
}
