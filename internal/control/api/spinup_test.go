package api_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"holdfast/internal/control/api"
	"holdfast/internal/control/api/apitest"
	"holdfast/internal/hosts/spinup"
)

// A record from another program is checked before it is kept: its texts become labels
// of metrics, and a failure must not count as a success.
func TestRecordsFromOutsideAreChecked(t *testing.T) {
	b := &apitest.Backend{}
	s := serve(t, b, api.Options{Admin: true})
	good := apitest.Samples()[0]
	if r := call(t, s, "POST", "/v1/spinups", asJSON(good)); r.status != http.StatusOK || !strings.Contains(r.body, good.ID) {
		t.Fatalf("status %d: %s", r.status, r.body)
	}
	for name, change := range map[string]func(*spinup.Record){
		"kind":      func(r *spinup.Record) { r.Kind = "mine" },
		"succeeded": func(r *spinup.Record) { r.Error = "it did not" },
		"half":      func(r *spinup.Record) { r.Pull.Done = false },
		"huge":      func(r *spinup.Record) { r.Error = strings.Repeat("x", 1<<17) },
	} {
		one := apitest.Samples()[0]
		change(&one)
		if r := call(t, s, "POST", "/v1/spinups", asJSON(one)); r.status < 400 || r.status >= 500 {
			t.Errorf("%s: status %d: %s", name, r.status, r.body)
		}
	}
	if got, err := b.Parts().Spinups.List(spinup.Filter{}); err != nil || len(got) != 1 {
		t.Errorf("%d are kept, %v", len(got), err)
	}
	largest := good
	p := *good.Pull
	for range 1000 {
		p.Layers = append(p.Layers, p.Layers[0])
	}
	largest.Pull, largest.Error, largest.Image = &p, "", strings.Repeat("i", 1<<16)
	if body := asJSON(largest.Bounded()); len(body) > 64<<10 {
		t.Errorf("the largest record has %d bytes: no request carries it", len(body))
	}
}

func TestSpinupQueriesAreChecked(t *testing.T) {
	b := &apitest.Backend{}
	b.SetSpinups(apitest.Samples())
	s := serve(t, b, api.Options{Admin: true})
	for _, path := range []string{
		"/v1/spinups?kind=mine", "/v1/spinups?outcome=fine", "/v1/spinups?since=yesterday", "/v1/spinups?until=1", "/v1/spinups?slow=very",
		"/v1/spinups?limit=0", "/v1/spinups?limit=1001", "/v1/spinups?limit=x", "/v1/spinups?colour=blue",
		"/v1/spinup-stats?by=colour", "/v1/spinup-stats?at=now", "/v1/spinup-stats?against=aufs", "/v1/spinup-stats?limit=1",
		"/v1/spinup-stats?by=driver&at=2026-01-01T00:00:00Z",
	} {
		if r := call(t, s, "GET", path, ""); r.status != http.StatusBadRequest {
			t.Errorf("%s: status %d: %s", path, r.status, r.body)
		}
	}
	for _, path := range []string{"/v1/spinups/ffff", "/v1/spinup-stats?by=driver&against=btrfs"} {
		if r := call(t, s, "GET", path, ""); r.status != http.StatusNotFound {
			t.Errorf("%s: status %d: %s", path, r.status, r.body)
		}
	}
	var list api.SpinupList
	if err := json.Unmarshal([]byte(call(t, s, "GET", "/v1/spinups?slow=true", "").body), &list); err != nil {
		t.Fatal(err)
	}
	for _, one := range list.Spinups {
		if len(one.Slow) == 0 {
			t.Errorf("not slow: %+v", one)
		}
	}
	if len(list.Spinups) != 17 {
		t.Errorf("%d are slow", len(list.Spinups))
	}
}

func TestUnderWayIsChecked(t *testing.T) {
	s := serve(t, &apitest.Backend{}, api.Options{Admin: true})
	for _, body := range []string{`{"for_ms":-1}`, `{"for_ms":3600001}`, `{"kind":"session"}`, `{"kind":"other"}`, `{"name":"` + strings.Repeat("x", 129) + `"}`} {
		if r := call(t, s, "POST", "/v1/spinups-under-way", body); r.status != http.StatusBadRequest {
			t.Errorf("%s: status %d: %s", body, r.status, r.body)
		}
	}
	if r := call(t, s, "POST", "/v1/spinups-under-way/x/end", ""); r.status != http.StatusNotFound {
		t.Errorf("status %d: %s", r.status, r.body)
	}
}

// A caller with read access cannot add records.
func TestSpinupScopes(t *testing.T) {
	s := serve(t, &apitest.Backend{}, api.Options{})
	for path, want := range map[string]int{
		"GET /v1/spinups": http.StatusOK, "GET /v1/spinup-stats": http.StatusOK, "GET /v1/spinups-under-way": http.StatusOK,
		"POST /v1/spinups": http.StatusForbidden, "POST /v1/spinups-under-way": http.StatusForbidden, "POST /v1/spinups-under-way/x/end": http.StatusForbidden,
	} {
		method, path, _ := strings.Cut(path, " ")
		if r := call(t, s, method, path, ""); r.status != want {
			t.Errorf("%s %s: status %d, want %d: %s", method, path, r.status, want, r.body)
		}
	}
}
