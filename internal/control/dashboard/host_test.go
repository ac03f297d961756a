package dashboard_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"holdfast"
	"holdfast/internal/control/api/apitest"
)

// says fails the test for each text that a page lacks.
func says(t *testing.T, page, body string, texts ...string) {
	t.Helper()
	for _, want := range texts {
		if !strings.Contains(body, want) {
			t.Errorf("%s does not say %q", page, want)
		}
	}
}

func TestGCPage(t *testing.T) {
	s := serve(t, false)
	s.back.SetCollection(apitest.SomeCollection())
	says(t, "/gc", s.get(t, "/gc").body, "The agent deletes nothing", `<span class="tag degraded">over high</span>`, "88 % used", "88.0 GiB of 100.0 GiB", "40 % used",
		"low 75%", "the storage is btrfs", "Too few spin-ups", "25 %", "2 Jan 03:04:05", "1, 1 forced", "2.0 GiB", "not ended")
	s.back.SetFault(errors.New("the disk does not answer"))
	if r := s.get(t, "/gc?page=2"); r.status != http.StatusOK {
		t.Errorf("status %d", r.status)
	}
	messages, stop := s.follow(t, "/live/gc")
	defer stop()
	until(t, messages, "the disk does not answer")
}

func TestProtectPage(t *testing.T) {
	s := serve(t, false)
	says(t, "/protect", s.get(t, "/protect").body, "There was no hold since", "protect install")
	s = serve(t, false)
	s.back.SetProtection(apitest.SomeProtection())
	says(t, "/protect", s.get(t, "/protect").body, "80, 443", "systemctl", "131 ms", `<span class="tag trouble">no server</span> the time was up`, "3 wait", "30 s")
	s = serve(t, false)
	s.back.SetFault(holdfast.WithHint(fmt.Errorf("the history is torn: %w", holdfast.ErrNotFound), "remove it"))
	says(t, "/protect", s.get(t, "/protect").body, "This part does not answer", "the history is torn", "Hint: remove it")
}

func TestDoctorPage(t *testing.T) {
	s := serve(t, false)
	says(t, "/doctor", s.get(t, "/doctor").body, "There are no findings now", "1 rules find nothing", "BPF is not allowed")
	if body := s.get(t, "/doctor/fleet").body; !strings.Contains(body, "there is nothing to compare") {
		t.Error("a fleet of one is compared")
	}
	s = serve(t, false)
	s.back.SetDoctor()
	says(t, "/doctor", s.get(t, "/doctor").body, "Containers are slow on this host", "The node gets no new sessions", `<span class="tag trouble">critical</span> 50,000 memory cgroups`,
		"control group /docker", "a few hundred", "a container is throttled", "vendor/htmx", "copy.js")
	says(t, "/doctor/fleet", s.get(t, "/doctor/fleet?by=slow").body, "memcg.dying", `<span class="tag trouble">separates</span>`, `aria-current="true">share of slow`)
	if r := s.get(t, "/doctor/fleet?by=age"); r.status != http.StatusBadRequest {
		t.Errorf("by=age: status %d", r.status)
	}
	s = serve(t, false)
	s.back.SetFault(holdfast.WithHint(fmt.Errorf("the agent's doctor is switched off: %w", holdfast.ErrNotFound), "set doctor.enabled"))
	for _, page := range []string{"/doctor", "/doctor/fleet"} {
		if r := s.get(t, page); r.status != http.StatusOK {
			t.Errorf("%s: status %d", page, r.status)
		} else {
			says(t, page, r.body, "switched off", "Hint: set doctor.enabled")
		}
	}
}

func TestRecordings(t *testing.T) {
	s := serve(t, true)
	s.login(t, readToken)
	says(t, "/doctor/recordings", s.get(t, "/doctor/recordings").body, "2 Jan 02:04:05", "To record you need a token")
	if r := s.do(t, "POST", "/doctor/recordings", url.Values{"seconds": {"5"}}); r.status != http.StatusForbidden {
		t.Errorf("a recording by a reader: status %d", r.status)
	}
	s = serve(t, true)
	s.login(t, adminToken)
	s.back.SetDoctor()
	says(t, "/doctor/recordings", s.get(t, "/doctor/recordings").body, "<button>Record</button>")
	r := s.do(t, "POST", "/doctor/recordings", url.Values{"seconds": {"5"}, "container": {"log-3"}})
	if r.status != http.StatusSeeOther || r.header.Get("Location") != "/doctor/recordings/20260102-030405-000" {
		t.Fatalf("a recording: status %d, to %s", r.status, r.header.Get("Location"))
	}
	says(t, "one recording", s.get(t, r.header.Get("Location")).body, `<svg class="flame"`, "__lru_add_drain_all: 42.9 % of the host", `<rect class="k"`, "ksys_fadvise64_64 › generic_fadvise", "log-3")
	d := s.get(t, "/doctor/difference?good=20260102-020405-000&bad=20260102-030405-000")
	says(t, "the difference", d.body, "What grew from good to bad", "__lru_add_drain_all")
	if policy := d.header.Get("Content-Security-Policy"); !strings.HasPrefix(policy, "default-src 'none'; style-src 'sha256-") || strings.Contains(policy, "unsafe") || strings.Contains(policy, "script") {
		t.Errorf("its policy is %q", policy)
	}
	for _, tt := range []struct {
		method, path string
		form         url.Values
		headers      []string
		want         int
	}{
		{"GET", "/doctor/recordings/20260102-999999-000", nil, nil, 404},
		{"GET", "/doctor/recordings/..%2f..%2fetc", nil, nil, 404},
		{"GET", "/doctor/difference?good=x", nil, nil, 404},
		{"POST", "/doctor/recordings", url.Values{"seconds": {"-1"}}, nil, 400},
		{"POST", "/doctor/recordings", url.Values{"seconds": {"1e3"}}, nil, 400},
		{"POST", "/doctor/recordings", url.Values{"seconds": {"5"}}, []string{"Sec-Fetch-Site: cross-site"}, 403},
		{"POST", "/doctor/recordings", url.Values{"seconds": {"5"}, "container": {strings.Repeat("x", 9000)}}, nil, 413},
	} {
		if r := s.do(t, tt.method, tt.path, tt.form, tt.headers...); r.status != tt.want {
			t.Errorf("%s %s %v: status %d, want %d", tt.method, tt.path, tt.form, r.status, tt.want)
		}
	}
}
