package api

import (
	"encoding/json"
	"net/http"
	"time"
)

// NewPinging is New with another time between pings.
func NewPinging(p Parts, o Options, every time.Duration) http.Handler {
	p.pingEvery = every
	return New(p, o)
}

// RouteID is the identity of a line in the route table.
type RouteID struct{ Method, Path, ID string }

// RouteTable returns the identities of all routes.
func RouteTable() []RouteID {
	var list []RouteID
	for _, rt := range newServer(Parts{}, Options{}).table {
		list = append(list, RouteID{rt.method, rt.path, rt.id})
	}
	return list
}

// Document returns the OpenAPI document of the route table without the route with
// the given id.
func Document(without string) map[string]any {
	var table []route
	for _, rt := range newServer(Parts{}, Options{}).table {
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

// MaxBody is the longest body, in bytes.
const MaxBody = maxBody

// NewUnknownLimit returns the limit of audit lines about unknown callers.
func NewUnknownLimit() func(time.Time) (unlogged int64, ok bool) { return newAudit(nil).allow }
