package api

import (
	"encoding/json"
	"net/http"
	"time"
)

// NewPinging is New with another time between pings.
func NewPinging(b Backend, o Options, every time.Duration) http.Handler {
	s := newServer(b, o)
	s.pingEvery = every
	return s.handler()
}

// ToError is toError for tests.
func ToError(err error) *Error { return toError(err) }

// RouteID is the identity of a line in the route table.
type RouteID struct{ Method, Path, ID string }

// RouteTable is the route table as tests may see it.
func RouteTable() []RouteID {
	var list []RouteID
	for _, rt := range routes() {
		list = append(list, RouteID{rt.method, rt.path, rt.id})
	}
	return list
}

// Document is the document of the route table without the line of the given id.
func Document(without string) map[string]any {
	var table []route
	for _, rt := range routes() {
		if rt.id != without {
			table = append(table, rt)
		}
	}
	var doc map[string]any
	if err := json.Unmarshal(document(table), &doc); err != nil {
		panic(err)
	}
	return doc
}

// MaxBody is the longest body.
const (
	MaxBody = maxBody
)

// NewPace is how lines about strangers are bounded.
func NewPace() func(time.Time) (skipped int, ok bool) { return new(pace).step }
