package api_test

import (
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// For any input an operation answers as the document says, and never with an internal
// error.
func TestOddRequestsAreAnsweredAsDocumented(t *testing.T) {
	calls := examples()
	delete(calls, "execSession") // it answers with an upgrade
	ids := slices.Sorted(maps.Keys(calls))
	_, doc, ask := served(t)
	seen := map[int]int{}
	rapid.Check(t, func(t *rapid.T) {
		e := calls[rapid.SampledFrom(ids).Draw(t, "operation")]
		path, _ := doc.operation(e.method, strings.Split(e.path, "?")[0])
		e.path = oddPath(t, path) + oddQuery(t, doc, path, e.method)
		if e.body != "" || rapid.Bool().Draw(t, "a body without a schema") {
			e.body = oddBody(t, e.body)
		}
		e.headers = append(slices.Clone(e.headers), rapid.SampledFrom([]string{"Content-Type: application/json", "Content-Type: application/json",
			"Content-Type: text/plain", "Content-Type: ;", "X-Holdfast-Passed: 1", "Sec-Fetch-Site: cross-site", "Authorization: Bearer x"}).Draw(t, "header"))
		r := ask(e)
		seen[r.status]++
		if r.status == 500 {
			t.Fatalf("%s %s %q: %s", e.method, e.path, e.body, r.body)
		}
		if err := doc.check(e, r); err != nil {
			t.Fatalf("%s %s %q: status %d: %v", e.method, e.path, e.body, r.status, err)
		}
	})
	if testing.Short() {
		return // with a fifth of the requests, a status may be missing
	}
	for _, status := range []int{200, 400, 404, 415} {
		if seen[status] == 0 {
			t.Errorf("the requests got %d different answers: %v", status, seen)
		}
	}
}

// odd are texts in place of a name or a value.
func odd(t *rapid.T, what string) string {
	return rapid.OneOf(
		rapid.SampledFrom([]string{"alice", "n1", "stuck", "broken", "-1", "0", "99999999999999999999", "NaN", "1e400", "true", "2026-01-01T00:00:00Z",
			"\x00", "..%2f..", "a/b", "%", "ä", "\u202e", strings.Repeat("x", 300), "' OR 1=1", "<script>", "ip-10-0-0-1"}),
		rapid.StringN(1, 20, 80),
	).Draw(t, what)
}

// oddPath fills the placeholders of a path.
func oddPath(t *rapid.T, path string) string {
	parts := strings.Split(path, "/")
	for i, p := range parts {
		if !strings.HasPrefix(p, "{") {
			continue
		}
		if parts[i] = url.PathEscape(odd(t, p)); strings.Trim(parts[i], ".") == "" {
			parts[i] = "alice" // the server removes "." and ".." before routing
		}
	}
	return strings.Join(parts, "/")
}

// oddQuery gives odd values to some of the operation's parameters, and to one that it
// does not know.
func oddQuery(t *rapid.T, doc *spec, path, method string) string {
	q := url.Values{}
	known, _ := at(doc.doc, "paths", path, strings.ToLower(method), "parameters").([]any)
	for _, p := range known {
		name, _ := at(p, "name").(string)
		if at(p, "in") == "query" && name != "follow" && rapid.Bool().Draw(t, name) { // it never ends
			q.Set(name, odd(t, name))
		}
	}
	if rapid.IntRange(0, 9).Draw(t, "an unknown parameter") == 0 {
		q.Set(odd(t, "name"), "x")
	}
	if len(q) == 0 {
		return ""
	}
	return "?" + q.Encode()
}

// oddBody returns a body that mostly has an error.
func oddBody(t *rapid.T, body string) string {
	switch rapid.IntRange(0, 5).Draw(t, "body") {
	case 0:
		return body
	case 1:
		return body[:rapid.IntRange(0, len(body)).Draw(t, "cut")]
	case 2:
		return `{"` + rapid.StringMatching(`[a-z_]{1,12}`).Draw(t, "field") + `":` + rapid.SampledFrom([]string{"null", "-1", "1e99", "[]", "{}", `"x"`, "true"}).Draw(t, "value") + `}`
	case 3:
		return rapid.SampledFrom([]string{"null", "[]", "0", `""`, strings.Repeat("[", 5000), `{"a":` + strings.Repeat("9", 2000) + `}`, strings.Repeat(" ", 70_000)}).Draw(t, "odd")
	case 4:
		if body == "" {
			return odd(t, "text")
		}
		i := rapid.IntRange(0, len(body)-1).Draw(t, "place")
		return body[:i] + odd(t, "piece") + body[i+1:]
	}
	return strings.NewReplacer(`:`, `:-`, `["`, `["\u0000`, `true`, `null`).Replace(body)
}
