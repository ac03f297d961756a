package api_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The document says which values a parameter and a field may have: the API takes each
// value that a schema allows at its limits, and refuses each that it forbids.
func TestRequestsFromTheDocument(t *testing.T) {
	_, doc, _ := served(t)
	calls := examples()
	for _, id := range []string{"execSession", "runJob", "attachCommand", "sessionLogs", "doctorEvents"} {
		delete(calls, id) // streams
	}
	tried := 0
	for _, id := range slices.Sorted(maps.Keys(calls)) {
		_, _, ask := served(t)
		e := calls[id]
		path, op := doc.operation(e.method, strings.Split(e.path, "?")[0])
		try := func(e example, fine bool, what string) {
			tried++
			r := ask(e)
			if err := doc.check(e, r); err != nil || r.status == 500 || (r.status == 400) == fine {
				t.Errorf("%s: %s: status %d, %s, %v", id, what, r.status, r.body, err)
			}
		}
		for _, part := range regexp.MustCompile(`\{(\w+)\}`).FindAllStringSubmatch(path, -1) {
			if !hasParameter(op, "path", part[1]) {
				t.Errorf("%s: the document does not know the parameter %s", id, part[1])
			}
		}
		parameters, _ := op["parameters"].([]any)
		for _, p := range parameters {
			name := at(p, "name").(string)
			if at(p, "in") != "query" || unstated[id+"."+name] {
				continue
			}
			good, bad := samples(doc, at(p, "schema"))
			for _, v := range good {
				try(withQuery(e, name, v), true, fmt.Sprintf("%s=%v", name, v))
			}
			for _, v := range bad {
				if _, ok := v.(string); ok || v != nil {
					try(withQuery(e, name, v), false, fmt.Sprintf("%s=%v", name, v))
				}
			}
		}
		schema := doc.resolve(at(op, "requestBody", "content", "application/json", "schema"))
		if schema == nil {
			continue
		}
		try(withBody(e, "null"), false, "null")
		try(withBody(e, "[]"), false, "a list")
		try(withBody(e, "\f"), false, "white space that is not JSON's")
		try(withField(t, e, "no_such_field", 1), false, "an unknown field")
		fields, _ := schema["properties"].(map[string]any)
		for name, f := range fields {
			good, bad := samples(doc, f)
			for _, v := range good {
				if !unstated[id+"."+name] && !unstated[id] {
					try(withField(t, e, name, v), true, fmt.Sprintf("%s: %v", name, v))
				}
			}
			for _, v := range bad {
				if v != nil { // encoding/json takes null for an absent field
					try(withField(t, e, name, v), false, fmt.Sprintf("%s: %v", name, v))
				}
			}
		}
	}
	if tried < 150 {
		t.Errorf("only %d requests", tried)
	}
}

// unstated are fields and parameters with limits that the document does not state: those
// that depend on another value, on what there is, or on the syntax of a name.
var unstated = map[string]bool{
	"spinupStats.against": true, "fleetSpinupStats.against": true, "spinupSketch.against": true,
	"spinupStats.by": true, "fleetSpinupStats.by": true, "spinupSketch.by": true, "spinupStats.at": true, "fleetSpinupStats.at": true, "spinupSketch.at": true, // of the example's group
	"replaceSessions": true, "moveSession": true, "wakeSession": true, "startSession.from": true, "takeSnapshot.keep_ms": true, "addSpinup": true, "saveBaseline": true, "record": true, "addPrefetchImages": true, "removePrefetchImages": true, "signalCommand": true, "upgradeAgent": true,
}

func hasParameter(op map[string]any, in, name string) bool {
	list, _ := op["parameters"].([]any)
	return slices.ContainsFunc(list, func(p any) bool { return at(p, "in") == in && at(p, "name") == name })
}

// resolve follows a reference.
func (s *spec) resolve(schema any) map[string]any {
	if ref, ok := at(schema, "$ref").(string); ok {
		return s.resolve(at(s.doc, strings.Split(strings.TrimPrefix(ref, "#/"), "/")...))
	}
	m, _ := schema.(map[string]any)
	return m
}

// samples returns values at the limits of a schema, and values beyond them.
func samples(doc *spec, schema any) (good, bad []any) {
	s := doc.resolve(schema)
	if all, ok := s["enum"].([]any); ok {
		return all, []any{"no-such-value"}
	}
	switch s["type"] {
	case "boolean":
		return []any{true, false}, []any{"perhaps", 2, ""}
	case "integer", "number":
		least, ok1 := s["minimum"].(float64)
		most, ok2 := s["maximum"].(float64)
		if good, bad = []any{1}, []any{"many", ""}; ok1 && ok2 {
			good = append(good, int64(least), int64(most))
			bad = append(bad, int64(least)-1, int64(most)+1)
		}
		if s["type"] == "integer" {
			bad = append(bad, 1.5)
		} else if s["description"] == "milliseconds" {
			bad = append(bad, 1e18) // as nanoseconds it would overflow
		}
		return good, bad
	case "array":
		if bad = []any{"one"}; s["minItems"] != nil {
			bad = append(bad, []any{})
		}
		if at(s, "items", "pattern") == "^[^=]+=" {
			return []any{[]any{"A=b", "C="}}, append(bad, []any{"A"}, []any{"=b"})
		}
		return []any{[]any{"echo"}}, bad
	case "string":
		switch {
		case s["format"] == "date-time":
			return []any{"2026-01-01T00:00:00Z", "2026-01-01T00:00:00.5+02:00"}, []any{"yesterday", "2026-01-01", ""}
		case strings.HasPrefix(fmt.Sprint(s["pattern"]), "^(([A-Za-z"):
			return []any{"a=1&b=%3D%00", "%20="}, []any{"a", "=b", "a=%", "%00=1", "a b", strings.Repeat("n", 251) + "="}
		case s["pattern"] == `^/[^\x00]*$`:
			return []any{"/web"}, []any{"web", "../x", ""} // the backend of tests takes a zero byte
		case s["pattern"] == "^(/|$)":
			return []any{"/web", ""}, []any{"web", "../x"}
		case s["pattern"] == "^([0-9]{1,10}:[0-9]{1,10})?$":
			return []any{"0:0", "1000:1000", ""}, []any{"alice", "1", "1:2:3"}
		case s["pattern"] == "^[0-7]{0,4}$":
			return []any{"755", "0644"}, []any{"9", "rwx", "17777"}
		case s["pattern"] != nil:
			return []any{"alice"}, []any{"../x", "", "a b"}
		}
		return []any{"web"}, nil
	}
	return nil, nil
}

func withQuery(e example, name string, v any) example {
	path, query, _ := strings.Cut(e.path, "?")
	q, _ := url.ParseQuery(query) // of an example
	q.Set(name, fmt.Sprint(v))
	e.path = path + "?" + q.Encode()
	return e
}

func withBody(e example, body string) example {
	e.body = body
	return e
}

// withField returns an example whose body has another value for a field.
func withField(t *testing.T, e example, name string, v any) example {
	t.Helper()
	fields := map[string]any{}
	if e.body != "" {
		if err := json.Unmarshal([]byte(e.body), &fields); err != nil {
			t.Fatal(err)
		}
	}
	fields[name] = v
	e.body = asJSON(fields)
	return e
}
