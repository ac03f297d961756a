package api

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"holdfast"
	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/baseline"
	"holdfast/internal/hosts/doctor/ranking"
	"holdfast/internal/hosts/doctor/watch"
)

// Doctor is the part of a Backend that watches its host. Where it is switched off
// its methods return holdfast.ErrNotFound, with a hint.
type Doctor interface {
	// DoctorStatus is what is known of the host now.
	DoctorStatus(ctx context.Context) (DoctorStatus, error)

	// DoctorHistory is what was known since then, at most limit events (0: all
	// that are kept).
	DoctorHistory(ctx context.Context, since time.Time, limit int) (watch.History, error)

	// DoctorEvents yields what happens to findings until ctx is done, when the
	// channel is closed. holdfast.ErrBusy.
	DoctorEvents(ctx context.Context) (<-chan watch.Event, error)

	// DoctorFleet says what separates the slow nodes from the fast ones.
	DoctorFleet(ctx context.Context, by ranking.By) (ranking.Ranking, error)

	// Baselines lists those of the fleet and of this host, by name.
	Baselines(ctx context.Context) ([]baseline.Baseline, error)

	// SaveBaseline keeps one for the whole fleet; one of the same name is replaced.
	SaveBaseline(ctx context.Context, b baseline.Baseline) error

	// RemoveBaseline removes one. holdfast.ErrNotFound.
	RemoveBaseline(ctx context.Context, name string) error
}

// DoctorStatus is what an agent knows of its host.
type DoctorStatus struct {
	watch.Status
	Node   holdfast.NodeID `json:"node"`
	Kernel string          `json:"kernel"`
	Role   string          `json:"role,omitempty"`
	// Degraded is why containers are slow on this host, "" where they are not
	// known to be.
	Degraded      string    `json:"degraded,omitempty"`
	DegradedSince time.Time `json:"degraded_since,omitzero"`
	// Resting says that it gets no new session because of it.
	Resting bool `json:"resting"`
}

// Baselines is the answer to a list of baselines.
type Baselines struct {
	Baselines []baseline.Baseline `json:"baselines"`
}

// BaselineName names one.
type BaselineName struct {
	Name string `json:"name"`
}

// doctorRoutes are those about the host's health.
func doctorRoutes() []route {
	return []route{
		{method: "GET", path: "/v1/doctor", id: "doctorStatus", summary: "What the doctor knows of this host now.",
			access: forReader, limit: limitAsk, answer: DoctorStatus{}, handle: (*server).doctorStatus},
		{method: "GET", path: "/v1/nodes/{node}/doctor", id: "doctorStatusByID", summary: "As doctorStatus, of the given node's host.",
			access: forReader, at: atItsNode, limit: limitAsk, answer: DoctorStatus{}, handle: (*server).doctorStatus},
		{method: "GET", path: "/v1/doctor/history", id: "doctorHistory", summary: "Findings that began, changed and ended on this host, the newest first.",
			access: forReader, limit: limitAsk, answer: watch.History{}, handle: (*server).doctorHistory,
			query: []param{
				{"since", "only those of then or later", time.Time{}},
				{"limit", "at most that many; 0 is all that are kept", 0},
				{"samples", "the host's facts over time, too", false},
			}},
		{method: "GET", path: "/v1/doctor/events", id: "doctorEvents", summary: "Findings as they begin, change and end; one line for each. Ends where its reader is too slow.",
			access: forReader, answer: watch.Event{}, media: mediaNDJSON, handle: (*server).doctorEvents},
		{method: "GET", path: "/v1/doctor/fleet", id: "doctorFleet", summary: "Which facts separate the fleet's slow nodes from its fast ones.",
			access: forReader, limit: limitStats, answer: ranking.Ranking{}, handle: (*server).doctorFleet,
			query: []param{{"by", "what nodes are split by: p50 or p99 of a container's create and start, or slow, the share of slow spin-ups; p50 where absent", ""}}},
		{method: "GET", path: "/v1/doctor/baselines", id: "listBaselines", summary: "Baselines of healthy hosts, by name.",
			access: forReader, limit: limitAsk, answer: Baselines{}, handle: (*server).baselines},
		{method: "POST", path: "/v1/doctor/baselines", id: "saveBaseline", summary: "Keep a baseline for the whole fleet; one of the same name is replaced.",
			access: forAdmin, limit: limitAsk, request: baseline.Baseline{}, status: http.StatusNoContent, handle: (*server).saveBaseline},
		{method: "POST", path: "/v1/doctor/baselines/remove", id: "removeBaseline", summary: "Remove a baseline.",
			access: forAdmin, limit: limitAsk, request: BaselineName{}, status: http.StatusNoContent, handle: (*server).removeBaseline},
	}
}

func (s *server) doctorStatus(w http.ResponseWriter, r *http.Request) error {
	st, err := s.b.DoctorStatus(r.Context())
	if err != nil {
		return err
	}
	st.Findings, st.Facts, st.Checked = notNil(st.Findings), notNil(st.Facts), notNil(st.Checked)
	st.Gaps, st.Bursts = notNil(st.Gaps), notNil(st.Bursts)
	for i := range st.Findings {
		st.Findings[i].Finding = whole(st.Findings[i].Finding)
	}
	return writeJSON(w, st)
}

// whole is a finding without lists that are nil.
func whole(f doctor.Finding) doctor.Finding {
	f.Evidence, f.Cures = notNil(f.Evidence), notNil(f.Cures)
	return f
}

func (s *server) doctorHistory(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	since, err := timeOf(q, "since")
	if err != nil {
		return err
	}
	limit, err := limitOf(r)
	if err != nil {
		return err
	}
	samples := false
	if v := q.Get("samples"); v != "" {
		if samples, err = strconv.ParseBool(v); err != nil {
			return badQuery("samples", v, "true or false")
		}
	}
	h, err := s.b.DoctorHistory(r.Context(), since, limit)
	if err != nil {
		return err
	}
	h.Events, h.Samples = notNil(h.Events), notNil(h.Samples)
	for i := range h.Events {
		h.Events[i].Finding = whole(h.Events[i].Finding)
	}
	if !samples {
		h.Samples = []watch.Sample{}
	}
	return writeJSON(w, h)
}

// doctorEvents has no deadline: nothing may happen for days.
func (s *server) doctorEvents(w http.ResponseWriter, r *http.Request) error {
	closed, err := s.open()
	if err != nil {
		return err
	}
	defer closed()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	ch, err := s.b.DoctorEvents(ctx)
	if err != nil {
		return err
	}
	lines := &events{stream: stream{w: w, media: mediaNDJSON}}
	lines.begin()
	_ = http.NewResponseController(w).Flush() // who waits is to know that it follows; a failure shows at the first line
	for e := range ch {
		e.Finding = whole(e.Finding)
		if lines.send(e); lines.lost {
			return nil
		}
	}
	return nil
}

func (s *server) doctorFleet(w http.ResponseWriter, r *http.Request) error {
	by, err := ranking.ParseBy(r.URL.Query().Get("by"))
	if err != nil {
		return &Error{Code: CodeBadRequest, Message: bounded(err.Error())}
	}
	all, err := s.b.DoctorFleet(r.Context(), by)
	if err != nil {
		return err
	}
	all.Nodes, all.LeftOut, all.Facts, all.Same = notNil(all.Nodes), notNil(all.LeftOut), notNil(all.Facts), notNil(all.Same)
	return writeJSON(w, all)
}

func (s *server) baselines(w http.ResponseWriter, r *http.Request) error {
	all, err := s.b.Baselines(r.Context())
	if err != nil {
		return err
	}
	return writeJSON(w, Baselines{notNil(all)})
}

func (s *server) saveBaseline(w http.ResponseWriter, r *http.Request) error {
	var b baseline.Baseline
	if err := decode(w, r, &b); err != nil {
		return err
	}
	note(r.Context(), "baseline", bounded(b.Name))
	if err := b.Validate(); err != nil {
		return &Error{Code: CodeBadRequest, Message: err.Error()}
	}
	if err := s.b.SaveBaseline(r.Context(), b); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *server) removeBaseline(w http.ResponseWriter, r *http.Request) error {
	var q BaselineName
	if err := decode(w, r, &q); err != nil {
		return err
	}
	note(r.Context(), "baseline", bounded(q.Name))
	if err := baseline.CheckName(q.Name); err != nil {
		return &Error{Code: CodeBadRequest, Message: err.Error()}
	}
	if err := s.b.RemoveBaseline(r.Context(), q.Name); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
