package dashboard_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"holdfast/internal/control/api/apitest"
)

// A page answers any input, and escapes every text of the request.
func TestOddQuestionsToPages(t *testing.T) {
	s := serve(t, false)
	s.start(t, "alice")
	s.back.SetDoctor()
	s.back.SetSpinups(apitest.Samples())
	s.back.SetCollection(apitest.SomeCollection())
	s.back.SetProtection(apitest.SomeProtection())
	paths := []string{"/", "/sessions", "/sessions/KEY", "/slo", "/spinup", "/spinup/slow", "/spinup/fleet", "/spinup/KEY", "/gc", "/protect", "/doctor", "/doctor/fleet",
		"/doctor/recordings", "/doctor/recordings/KEY", "/doctor/difference", "/login", "/assets/KEY/page.css"}
	names := []string{"q", "state", "page", "key", "live", "per", "by", "kind", "phase", "group", "since", "until", "good", "bad", "next"}
	odd := rapid.OneOf(
		rapid.SampledFrom([]string{"alice", "node:n1", "day", "driver", "create", "p99", "2026-01-01T00:00:00Z", "-1", "99999999999999999999", "\x00", "../../etc", "%",
			"<script>alert(1)</script>", `"><img src=x onerror=alert(1)>`, "javascript:alert(1)", "{{.}}", "\u202e", strings.Repeat("x", 3000)}),
		rapid.StringN(0, 20, 80))
	seen := map[int]int{}
	rapid.Check(t, func(r *rapid.T) {
		path := strings.ReplaceAll(rapid.SampledFrom(paths).Draw(r, "path"), "KEY", url.PathEscape("k"+odd.Draw(r, "key")))
		q := url.Values{}
		for range rapid.IntRange(0, 4).Draw(r, "parameters") {
			q.Add(rapid.SampledFrom(names).Draw(r, "name"), odd.Draw(r, "value"))
		}
		got := s.get(t, path+"?"+q.Encode())
		seen[got.status]++
		if got.status >= http.StatusInternalServerError {
			r.Fatalf("%s?%s: status %d: %s", path, q.Encode(), got.status, got.body)
		}
		for _, bad := range []string{"<script>alert", "<img src=x", `href="javascript:`} {
			if strings.Contains(got.body, bad) {
				r.Fatalf("%s?%s: the page has %s in it", path, q.Encode(), bad)
			}
		}
	})
	if testing.Short() {
		return // 20 requests may have the same kind of answer
	}
	for _, status := range []int{200, 400, 404} {
		if seen[status] == 0 {
			t.Errorf("the requests got %d different answers: %v", status, seen)
		}
	}
}
