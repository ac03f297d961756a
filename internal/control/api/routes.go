package api

import (
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"holdfast"
)

// handler answers a request. If it returns an error it has written nothing, or
// the error is sent.
type handler func(http.ResponseWriter, *http.Request) error

// route is one line of the table from which the server and the OpenAPI document
// are made.
type route struct {
	method, path string
	id, summary  string
	access       access
	at           place
	limit        time.Duration // for the whole request; 0 means none
	stream       bool          // counts among maxStreams while it is served
	paced        bool          // a transfer that makes no progress ends; see paced
	partial      bool          // it may answer with a part (206)
	body         string        // media type of a body that is passed on as it arrives; "": see request
	forward      bool          // a stream that counts among maxForwards instead
	query        []param
	request      any // zero value of the body's type; nil: no body
	answer       any // zero value of the answer's type, or of one line of it; nil: none
	media        string
	status       int
	handle       handler
}

// param is a query parameter.
type param struct {
	name, summary string
	zero          any // of its type; oneOf, span, pattern, needed
}

// oneOf is the zero value of a parameter that has one of these values.
type oneOf []string

// span is the zero value of a whole number in a range.
type span struct{ least, most int }

// pattern is the zero value of a parameter of this regular expression.
type pattern string

// needed is a pattern of a parameter that has to be there.
type needed string

// Patterns of files.
const (
	pathPattern = `^/[^\x00]*$` // absolute
	modePattern = "^[0-7]{0,4}$"
	// pairsPattern has names of at most 250 bytes (XATTR_NAME_MAX without "user.").
	pairsPattern = "^(([A-Za-z0-9._~-]|%[2-7][0-9A-F]){1,250}=([A-Za-z0-9._~+-]|%[0-9A-F]{2})*(&|$))+$"
)

// namesOf lists the values of a type of names.
func namesOf[T ~string](all []T) oneOf {
	var names oneOf
	for _, one := range all {
		names = append(names, string(one))
	}
	return names
}

// limitParam is the parameter that limitOf reads.
var limitParam = param{"limit", "at most that many; 0 is all that are kept", span{0, math.MaxInt32}}

// Media types.
const (
	mediaJSON   = "application/json"
	mediaNDJSON = "application/x-ndjson"
	mediaText   = "text/plain; charset=utf-8"
	mediaOctets = "application/octet-stream"
)

// Time limits of requests. The template's readiness limit normally ends a start
// before limitStart does.
const (
	limitAsk   = 10 * time.Second
	limitStop  = time.Minute
	limitStats = time.Minute     // reading all records, and a hundred bootstraps
	limitPlan  = 2 * time.Minute // the engine lists all its objects
	limitMove  = 5 * time.Minute // images may be large
	limitStart = 10 * time.Minute
)

// ownRoutes are the routes that need no part of an agent.
func (s *server) ownRoutes() []route {
	return []route{
		{method: "GET", path: "/v1/version", id: "version", summary: "The version of the agent that answers.",
			access: forReader, limit: limitAsk, answer: Version{}, handle: s.version},
		{method: "GET", path: "/v1/openapi.json", id: "openapi", summary: "This document.",
			access: forReader, limit: limitAsk, answer: map[string]any{}, handle: s.openapi},
		{method: "GET", path: "/healthz", id: "healthz", summary: "The agent answers.",
			access: forAnyone, limit: limitAsk, answer: Health{}, handle: healthz},
		{method: "GET", path: "/metrics", id: "metrics", summary: "Metrics in the Prometheus text format.",
			access: forReader, limit: limitAsk, media: mediaText, query: []param{{"name[]", "only metrics of this name", ""}}, handle: s.metrics},
	}
}

func (s *server) version(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, s.parts.Version)
}

func (s *server) openapi(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", mediaJSON)
	_, _ = w.Write(document(s.table))
	return nil
}

func healthz(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, Health{Status: "ok"})
}

func (s *server) metrics(w http.ResponseWriter, r *http.Request) error {
	if s.Metrics == nil {
		return fmt.Errorf("metrics on this address: %w", holdfast.ErrNotFound)
	}
	s.Metrics.ServeHTTP(w, r)
	return nil
}

// asking returns a handler that answers with what ask returns.
func asking[T any](ask func(*http.Request) (T, error)) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		v, err := ask(r)
		if err != nil {
			return err
		}
		return writeJSON(w, v)
	}
}

// doing returns a handler that reads a body of type Q, calls do and answers with
// what do returns.
func doing[Q, T any](do func(*http.Request, Q) (T, error)) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		var q Q
		if err := decode(w, r, &q); err != nil {
			return err
		}
		v, err := do(r, q)
		if err != nil {
			return err
		}
		return writeJSON(w, v)
	}
}

// changing is doing for a request that has no answer but its status.
func changing[Q any](do func(*http.Request, Q) error) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		var q Q
		if err := decode(w, r, &q); err != nil {
			return err
		}
		if err := do(r, q); err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
}

func keyOf(r *http.Request) (holdfast.SessionKey, error) {
	return holdfast.ParseSessionKey(r.PathValue("key"))
}

// valueOf returns a parameter that parse reads, the zero value if it is absent. want
// describes its values.
func valueOf[T any](q url.Values, name, want string, parse func(string) (T, error)) (v T, err error) {
	text := q.Get(name)
	if !q.Has(name) {
		return v, nil
	}
	if v, err = parse(text); err != nil {
		return v, badQuery(name, text, want)
	}
	return v, nil
}

// limitOf returns the query's limit, 0 if there is none.
func limitOf(r *http.Request) (int, error) {
	n, err := valueOf(r.URL.Query(), "limit", "a whole number from 0 on", func(s string) (uint64, error) { return strconv.ParseUint(s, 10, 31) })
	return int(n), err
}

// boolOf returns a parameter that is true or false, false if it is absent.
func boolOf(q url.Values, name string) (bool, error) {
	return valueOf(q, name, "true or false", strconv.ParseBool)
}

// timeOf returns a parameter that is a time, the zero time if it is absent.
func timeOf(q url.Values, name string) (time.Time, error) {
	return valueOf(q, name, "a time such as 2026-11-01T12:00:00Z", func(s string) (time.Time, error) { return time.Parse(time.RFC3339Nano, s) })
}

func badQuery(name, value, want string) error {
	return badRequest("%s is %q, it must be %s", name, bounded(value), want)
}

// badRequest is the error for a request that cannot be understood.
func badRequest(format string, args ...any) error {
	return &Error{Code: CodeBadRequest, Message: fmt.Sprintf(format, args...)}
}

// checkQuery refuses parameters that the route does not know. Without it a
// caller with a misspelt filter would get everything.
func checkQuery(r *http.Request, known []param) error {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return badRequest("the query: %v", err)
	}
	for name := range q {
		if !slices.ContainsFunc(known, func(p param) bool { return p.name == name }) {
			return badRequest("there is no query parameter %q", name)
		}
	}
	return nil
}

// notNil turns nil into an empty list: the JSON then has [] and not null.
func notNil[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}
