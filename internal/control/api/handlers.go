package api

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"holdfast"
)

func (s *server) version(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, s.b.Version())
}

func (s *server) sessions(w http.ResponseWriter, r *http.Request) error {
	all, err := s.b.Sessions(r.Context())
	if err != nil {
		return err
	}
	return writeJSON(w, Sessions{notNil(all)})
}

func (s *server) session(w http.ResponseWriter, r *http.Request) error {
	key, err := keyOf(r)
	if err != nil {
		return err
	}
	one, err := s.b.Session(r.Context(), key)
	if err != nil {
		return err
	}
	return writeJSON(w, one)
}

func (s *server) start(w http.ResponseWriter, r *http.Request) error {
	key, err := keyOf(r)
	if err != nil {
		return err
	}
	var q StartRequest
	if err := decode(w, r, &q); err != nil {
		return err
	}
	one, err := s.b.StartSession(r.Context(), key, q.Template)
	if err != nil {
		return err
	}
	return writeJSON(w, one)
}

func (s *server) stop(w http.ResponseWriter, r *http.Request) error {
	return s.end(w, r, s.b.StopSession)
}

// move goes on when the caller leaves, as end does.
func (s *server) move(w http.ResponseWriter, r *http.Request) error {
	key, err := keyOf(r)
	if err != nil {
		return err
	}
	var q MoveRequest
	if err := decode(w, r, &q); err != nil {
		return err
	}
	if q.To != "" && !q.Elsewhere {
		return &Error{Code: CodeBadRequest, Message: "to needs elsewhere"}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), limitMove)
	defer cancel()
	rep, err := s.b.MoveSession(ctx, key, q)
	if err != nil {
		return err
	}
	rep.Dead, rep.Left, rep.Steps, rep.Memory.Lost = notNil(rep.Dead), notNil(rep.Left), notNil(rep.Steps), notNil(rep.Memory.Lost)
	return writeJSON(w, rep)
}

// suspend goes on when the caller leaves, as end does.
func (s *server) suspend(w http.ResponseWriter, r *http.Request) error {
	key, err := keyOf(r)
	if err != nil {
		return err
	}
	if err := decode(w, r, &Empty{}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), limitStart)
	defer cancel()
	rep, err := s.b.SuspendSession(ctx, key)
	if err != nil {
		return err
	}
	rep.Left = notNil(rep.Left)
	return writeJSON(w, rep)
}

func (s *server) resume(w http.ResponseWriter, r *http.Request) error {
	key, err := keyOf(r)
	if err != nil {
		return err
	}
	if err := decode(w, r, &Empty{}); err != nil {
		return err
	}
	one, err := s.b.ResumeSession(r.Context(), key)
	if err != nil {
		return err
	}
	return writeJSON(w, one)
}

// end goes on when the caller leaves: what has begun to die is seen dead.
func (s *server) end(w http.ResponseWriter, r *http.Request, by func(context.Context, holdfast.SessionKey) (holdfast.KillReport, error)) error {
	key, err := keyOf(r)
	if err != nil {
		return err
	}
	if err := decode(w, r, &Empty{}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), limitStop)
	defer cancel()
	rep, err := by(ctx, key)
	if err != nil {
		return err
	}
	rep.Dead, rep.Left, rep.Steps = notNil(rep.Dead), notNil(rep.Left), notNil(rep.Steps)
	return writeJSON(w, rep)
}

func (s *server) nodes(w http.ResponseWriter, r *http.Request) error {
	all, err := s.b.Nodes(r.Context())
	if err != nil {
		return err
	}
	return writeJSON(w, Nodes{notNil(all)})
}

func (s *server) uncordon(w http.ResponseWriter, r *http.Request) error {
	if err := decode(w, r, &Empty{}); err != nil {
		return err
	}
	if err := s.b.Uncordon(r.Context()); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *server) cordon(w http.ResponseWriter, r *http.Request) error {
	if err := decode(w, r, &Empty{}); err != nil {
		return err
	}
	if err := s.b.Cordon(r.Context()); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *server) stopAgent(w http.ResponseWriter, r *http.Request) error {
	var q StopAgentRequest
	if err := decode(w, r, &q); err != nil {
		return err
	}
	note(r.Context(), "keep", q.Keep)
	if err := s.b.StopAgent(q.Keep); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *server) replacements(w http.ResponseWriter, r *http.Request) error {
	limit, err := limitOf(r)
	if err != nil {
		return err
	}
	rows, err := s.b.Replacements(r.Context(), limit)
	if err != nil {
		return err
	}
	return writeJSON(w, Replacements{notNil(rows)})
}

// limitOf is the query's limit, 0 where there is none.
func limitOf(r *http.Request) (int, error) {
	v := r.URL.Query().Get("limit")
	if v == "" {
		return 0, nil
	}
	limit, err := strconv.Atoi(v)
	if err != nil || limit < 0 {
		return 0, &Error{Code: CodeBadRequest, Message: fmt.Sprintf("limit is %q, it has to be a whole number from 0 on", bounded(v))}
	}
	return limit, nil
}

func (s *server) openapi(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", mediaJSON)
	_, _ = w.Write(s.doc)
	return nil
}

func (s *server) healthz(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, Health{Status: "ok"})
}

func (s *server) readyz(w http.ResponseWriter, r *http.Request) error {
	if err := s.b.Ready(r.Context()); err != nil {
		if e := toError(err); e.Code == CodeInternal {
			return &Error{Code: CodeNotReady, Message: e.Message, Advice: e.Advice}
		}
		return err
	}
	return writeJSON(w, Health{Status: "ok"})
}

func (s *server) metrics(w http.ResponseWriter, r *http.Request) error {
	if s.prom == nil {
		return fmt.Errorf("metrics on this address: %w", holdfast.ErrNotFound)
	}
	s.prom.ServeHTTP(w, r)
	return nil
}

func keyOf(r *http.Request) (holdfast.SessionKey, error) {
	return holdfast.ParseSessionKey(r.PathValue("key"))
}

// checkQuery refuses parameters that the route does not know: a caller who sends
// a filter must not get everything.
func checkQuery(r *http.Request, known []param) error {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return &Error{Code: CodeBadRequest, Message: "the query: " + err.Error()}
	}
	for name := range q {
		if !slices.ContainsFunc(known, func(p param) bool { return p.name == name }) {
			return &Error{Code: CodeBadRequest, Message: fmt.Sprintf("there is no query parameter %q", name)}
		}
	}
	return nil
}

func logOptions(r *http.Request) (LogOptions, error) {
	o := LogOptions{Tail: -1}
	q := r.URL.Query()
	var err error
	if v := q.Get("tail"); v != "" {
		if o.Tail, err = strconv.Atoi(v); err != nil {
			return o, &Error{Code: CodeBadRequest, Message: fmt.Sprintf("tail is %q, it has to be a whole number", v)}
		}
	}
	for name, to := range map[string]*bool{"follow": &o.Follow, "timestamps": &o.Timestamps} {
		if v := q.Get(name); v != "" {
			if *to, err = strconv.ParseBool(v); err != nil {
				return o, &Error{Code: CodeBadRequest, Message: fmt.Sprintf("%s is %q, it has to be true or false", name, v)}
			}
		}
	}
	return o, nil
}

// notNil turns nil into an empty list, which is what JSON should show.
func notNil[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}
