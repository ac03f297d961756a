package api

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/underway"
)

// filterQuery are the parameters that choose records.
var filterQuery = []param{
	{"since", "only those that began then or later", time.Time{}},
	{"until", "only those that began before", time.Time{}},
	{"kind", "only of this kind: session, pull, run or other", ""},
	{"image", "only of this image; without a tag: of any", ""},
	{"job", "only of this session or run", ""},
	{"outcome", "only those that ended like this: ok, failed or stopped", ""},
	{"slow", "only those with a slow phase", false},
}

// spinupRoutes are those about spin-ups.
func spinupRoutes() []route {
	return []route{
		{method: "GET", path: "/v1/spinups", id: "listSpinups", summary: "Spin-ups on this host, the newest first, without the layers of their pulls.",
			access: forReader, limit: limitAsk, answer: SpinupList{},
			query:  append(slices.Clone(filterQuery), param{"limit", "at most that many, up to 1000; 50 where absent", 0}),
			handle: (*server).listSpinups},
		{method: "GET", path: "/v1/spinups/{id}", id: "getSpinup", summary: "One spin-up, by its id or the beginning of it, with every layer.",
			access: forReader, limit: limitAsk, answer: JudgedSpinup{}, handle: (*server).getSpinup},
		{method: "POST", path: "/v1/spinups", id: "addSpinup", summary: "Keep the record of a spin-up that a command did.",
			access: forAdmin, limit: limitAsk, request: spinup.Record{}, answer: SpinupAdded{}, handle: (*server).addSpinup},
		{method: "GET", path: "/v1/spinup-stats", id: "spinupStats", summary: "How often each phase was slow, in groups that are compared with the first, or before and after a moment.",
			access: forReader, limit: limitStats, answer: spinup.Report{},
			query: append(slices.Clone(filterQuery),
				param{"by", "what is a group: " + strings.Join(groupings(), ", "), ""},
				param{"against", "the group that the others are compared with; the largest where absent", ""},
				param{"at", "two groups: what began before then, and the rest", time.Time{}}),
			handle: (*server).spinupStats},
		{method: "GET", path: "/v1/spinups-under-way", id: "spinupsUnderWay", summary: "Spin-ups on this host that have not ended.",
			access: forReader, limit: limitAsk, answer: SpinupsUnderWay{}, handle: (*server).spinupsUnderWay},
		{method: "POST", path: "/v1/spinups-under-way", id: "beginSpinup", summary: "Announce a spin-up: what waits for quiet waits until it is ended, or its time is up.",
			access: forAdmin, limit: limitAsk, request: BeginSpinupRequest{}, answer: underway.Entry{}, handle: (*server).beginSpinup},
		{method: "POST", path: "/v1/spinups-under-way/{id}/end", id: "endSpinup", summary: "End a spin-up that was announced.",
			access: forAdmin, limit: limitAsk, request: Empty{}, status: http.StatusNoContent, handle: (*server).endSpinup},
	}
}

// limitStats is for the reading of all records, and a hundred bootstraps.
const limitStats = time.Minute

func groupings() (names []string) {
	for _, by := range spinup.Groupings() {
		names = append(names, string(by))
	}
	return names
}

func (s *server) listSpinups(w http.ResponseWriter, r *http.Request) error {
	f, err := s.spinupFilter(r.URL.Query())
	if err != nil {
		return err
	}
	f.Limit = DefaultSpinups
	if v := r.URL.Query().Get("limit"); v != "" {
		if f.Limit, err = strconv.Atoi(v); err != nil || f.Limit < 1 || f.Limit > MaxSpinups {
			return badQuery("limit", v, fmt.Sprintf("a whole number from 1 to %d", MaxSpinups))
		}
	}
	records, err := s.b.Spinups(r.Context(), f)
	if err != nil {
		return err
	}
	list := SpinupList{Spinups: []JudgedSpinup{}}
	for _, one := range records {
		list.Spinups = append(list.Spinups, Judge(one, s.b.SlowRules()))
	}
	return writeJSON(w, list)
}

// Judge is a record with what the rules say of it, as the API shows it.
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

func (s *server) getSpinup(w http.ResponseWriter, r *http.Request) error {
	one, err := s.b.Spinup(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	return writeJSON(w, Judge(one, s.b.SlowRules()))
}

func (s *server) addSpinup(w http.ResponseWriter, r *http.Request) error {
	var one spinup.Record
	if err := decode(w, r, &one); err != nil {
		return err
	}
	note(r.Context(), "spinup", bounded(one.ID))
	if err := one.Validate(); err != nil {
		return &Error{Code: CodeBadRequest, Message: "the record: " + err.Error()}
	}
	if err := s.b.AddSpinup(r.Context(), one); err != nil {
		return err
	}
	return writeJSON(w, SpinupAdded{one.ID})
}

func (s *server) spinupStats(w http.ResponseWriter, r *http.Request) error {
	values := r.URL.Query()
	f, err := s.spinupFilter(values)
	if err != nil {
		return err
	}
	q := spinup.Question{Filter: f, By: spinup.By(values.Get("by")), Against: values.Get("against")}
	if q.At, err = timeOf(values, "at"); err != nil {
		return err
	}
	if err := q.Check(); err != nil {
		return &Error{Code: CodeBadRequest, Message: err.Error()}
	}
	report, err := s.b.SpinupReport(r.Context(), q)
	if err != nil {
		return err
	}
	return writeJSON(w, report)
}

func (s *server) spinupsUnderWay(w http.ResponseWriter, r *http.Request) error {
	all, err := s.b.SpinupsUnderWay(r.Context())
	if err != nil {
		return err
	}
	return writeJSON(w, SpinupsUnderWay{notNil(all)})
}

func (s *server) beginSpinup(w http.ResponseWriter, r *http.Request) error {
	var q BeginSpinupRequest
	if err := decode(w, r, &q); err != nil {
		return err
	}
	note(r.Context(), "name", bounded(q.Name))
	life := cmp.Or(time.Duration(q.For), DefaultUnderWay)
	kind := underway.Outside
	switch {
	case q.Kind == spinup.ForPull || q.Kind == spinup.ForRun:
		kind = string(q.Kind)
	case q.Kind != "":
		return &Error{Code: CodeBadRequest, Message: fmt.Sprintf("kind is %q, it has to be pull, run or absent", bounded(string(q.Kind)))}
	}
	switch {
	case life < 0 || life > MaxUnderWay:
		return &Error{Code: CodeBadRequest, Message: fmt.Sprintf("the time is %v, it has to be over 0 and at most %v", life, MaxUnderWay)}
	case len(q.Name) > underway.MaxName:
		return &Error{Code: CodeBadRequest, Message: fmt.Sprintf("the name has %d bytes, at most %d will do", len(q.Name), underway.MaxName)}
	}
	e, err := s.b.BeginSpinup(r.Context(), kind, q.Name, life)
	if err != nil {
		return err
	}
	return writeJSON(w, e)
}

func (s *server) endSpinup(w http.ResponseWriter, r *http.Request) error {
	if err := decode(w, r, &Empty{}); err != nil {
		return err
	}
	if err := s.b.EndSpinup(r.Context(), r.PathValue("id")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// spinupFilter reads the parameters of filterQuery.
func (s *server) spinupFilter(q url.Values) (spinup.Filter, error) {
	f := spinup.Filter{Kind: spinup.Kind(q.Get("kind")), Image: q.Get("image"), Job: q.Get("job"), Outcome: spinup.Outcome(q.Get("outcome"))}
	if f.Kind != "" && !slices.Contains(spinup.Kinds(), f.Kind) {
		return f, badQuery("kind", string(f.Kind), "session, pull, run or other")
	}
	if f.Outcome != "" && !slices.Contains(spinup.Outcomes(), f.Outcome) {
		return f, badQuery("outcome", string(f.Outcome), "ok, failed or stopped")
	}
	var err error
	if f.Since, err = timeOf(q, "since"); err != nil {
		return f, err
	}
	if f.Until, err = timeOf(q, "until"); err != nil {
		return f, err
	}
	if v := q.Get("slow"); v != "" {
		slow, err := strconv.ParseBool(v)
		if err != nil {
			return f, badQuery("slow", v, "true or false")
		}
		if slow {
			rules := s.b.SlowRules()
			f.Slow = &rules
		}
	}
	return f, nil
}

// timeOf reads a parameter that is a time, the zero one where it is absent.
func timeOf(q url.Values, name string) (time.Time, error) {
	v := q.Get(name)
	if v == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339Nano, v)
	if err != nil {
		return t, badQuery(name, v, "a time such as 2026-11-01T12:00:00Z")
	}
	return t, nil
}

func badQuery(name, value, want string) error {
	return &Error{Code: CodeBadRequest, Message: fmt.Sprintf("%s is %q, it has to be %s", name, bounded(value), want)}
}
