package dashboard_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/apitest"
	"holdfast/internal/control/dashboard"
	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/profile"
	"holdfast/internal/hosts/doctor/ranking"
	"holdfast/internal/hosts/doctor/recordings"
	"holdfast/internal/hosts/doctor/rule"
	"holdfast/internal/hosts/doctor/watch"
	"holdfast/internal/hosts/gc"
	"holdfast/internal/hosts/spinup"
)

// hostileSource returns a source in which every text that comes from outside is the given
// one. The key of the second session is a good one, so that it has a page.
func hostileSource(text string, now time.Time) dashboard.Source {
	s := dashboard.SourceOf((&apitest.Backend{Node: holdfast.NodeID(text)}).Parts())
	one := holdfast.Owner{Key: holdfast.SessionKey(text), Node: holdfast.NodeID(text), State: holdfast.Ready, Template: text, ContainerID: text, Address: text, ClaimedAt: now,
		Boot: holdfast.Phases{Start: holdfast.Millis(time.Second)}}
	two := one
	two.Key = "good"
	subject := doctor.Subject{Container: text, Image: text, Command: text, Kernel: []string{text}, User: []string{text}}
	finding := doctor.Finding{Subject: &subject, Against: []doctor.Subject{subject}, Finding: rule.Finding{Rule: text, Severity: rule.Severity(text), Title: text,
		Evidence: []rule.Evidence{{What: text, Found: text, Healthy: text}}, Cures: []rule.Cure{{What: text, Command: text}}}}
	record := spinup.NewRecord(spinup.ForRun, text, now, spinup.Cohort{Host: text, Driver: text, Engine: text, Kernel: text})
	record.ID, record.Job, record.Error, record.Container, record.Took = "a1", text, text, text, holdfast.Millis(time.Minute)
	record.Times = map[spinup.Phase]holdfast.Millis{spinup.Create: holdfast.Millis(time.Minute)}
	record.Pull = &spinup.Pull{Layers: []spinup.Layer{{ID: text}}}
	recording := apitest.SomeRecording(true)
	recording.Meta.Host, recording.Meta.Kernel, recording.Meta.Container, recording.Meta.Gaps = text, text, text, []string{text}
	for i := range recording.Frames {
		recording.Frames[i].Name, recording.Frames[i].File = text, text
	}
	for i := range recording.Samples {
		recording.Samples[i].Task.Container, recording.Samples[i].Task.Image, recording.Samples[i].Task.Comm = text, text, text
	}
	s.Nodes = func(context.Context) ([]holdfast.Node, error) {
		return []holdfast.Node{{ID: holdfast.NodeID(text), Address: text, Version: text, Trouble: text, Since: now}}, errors.New(text)
	}
	s.Sessions = func(context.Context) ([]api.Session, error) {
		return []api.Session{{Owner: one, LastError: text}, {Owner: two, LastError: text}}, nil
	}
	s.Commands = func(context.Context, holdfast.SessionKey) ([]holdfast.Command, error) {
		return []holdfast.Command{{ID: text, Command: []string{text}, StartedAt: now, EndedAt: now, Error: text}}, nil
	}
	s.Endings = func(context.Context, holdfast.SessionKey, int) (holdfast.EndingReport, error) {
		return holdfast.EndingReport{Endings: []holdfast.Ending{{Node: holdfast.NodeID(text), Reason: holdfast.EndBootFailed, By: holdfast.EndedBy(text), Phase: text, Error: text, Log: text}}}, nil
	}
	s.Spinups = func(spinup.Filter) ([]spinup.Record, error) { return []spinup.Record{record}, errors.New(text) }
	s.Spinup = func(string) (spinup.Record, error) { return record, nil }
	s.FleetSpinups = func(context.Context, spinup.Question) (spinup.FleetReport, error) {
		return spinup.FleetReport{Report: spinup.Report{Groups: []spinup.Group{{Name: text}}}, NoAnswer: []spinup.Missing{{Node: holdfast.NodeID(text), Why: text}}}, nil
	}
	s.GCStatus = func(context.Context) (gc.Status, error) { return gc.Status{NoLinks: text}, nil }
	s.GCHistory = func(int) ([]gc.Cycle, error) {
		return []gc.Cycle{{Begun: now, Ended: true, Trigger: gc.Trigger(text), Error: text, Notices: []string{text}}}, nil
	}
	s.Protection = func(context.Context) (api.Protection, error) {
		return api.Protection{Holds: []api.Hold{{At: now, Program: text, Backend: text, Reason: text}}, Ports: []api.ProtectedPort{{Address: text, Since: now, Command: text}}}, nil
	}
	s.DoctorStatus = func(context.Context) (api.DoctorStatus, error) {
		return api.DoctorStatus{Kernel: text, Role: text, Degraded: text, Status: watch.Status{Findings: []watch.Open{{Finding: finding, Since: now}}}}, nil
	}
	s.DoctorHistory = func(time.Time, int) (watch.History, error) {
		return watch.History{Events: []watch.Event{{At: now, Kind: watch.Kind(text), Finding: finding}}}, nil
	}
	s.Ranking = func(context.Context, ranking.By) (ranking.Ranking, error) {
		return ranking.Ranking{Verdict: text, Facts: []ranking.Fact{{Name: text}}, Nodes: []ranking.Node{{Node: holdfast.NodeID(text)}}, LeftOut: []ranking.Excluded{{Node: holdfast.NodeID(text), Why: text}}}, nil
	}
	s.Recordings = func() ([]recordings.Recording, error) {
		return []recordings.Recording{{ID: text, At: now, Kernel: text, Container: text}}, nil
	}
	s.Recording = func(id string) (*profile.Profile, error) {
		if id == "absent" {
			return nil, holdfast.WithHint(errors.New(text), text)
		}
		return recording, nil
	}
	return s
}

// A text from outside makes no element and no attribute on any page, and no address of
// another server. A browser shows it as it is.
func TestHostileTextsStayTexts(t *testing.T) {
	for _, text := range []string{`"><script>alert(1)</script>`, `'><img src=x onerror='alert(1)`, `</pre></title><b onclick=x>&lt;`, "javascript:alert(1)"} {
		o := api.Options{Log: slog.New(slog.DiscardHandler)}
		d, err := dashboard.New(hostileSource(text, time.Now()), dashboard.Options{Access: o, API: http.NotFoundHandler(), Log: o.Log})
		if err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct {
			path  string
			least int // how often the page has the text
		}{{"/", 5}, {"/sessions", 8}, {"/sessions/good", 9}, {"/slo", 3}, {"/spinup?by=image", 3}, {"/spinup/slow", 3}, {"/spinup/a1", 8}, {"/spinup/fleet", 2}, {"/gc", 4}, {"/protect", 5},
			{"/doctor", 15}, {"/doctor/fleet", 4}, {"/doctor/recordings", 2}, {"/doctor/recordings/r", 8}, {"/doctor/difference?good=r&bad=r", 4}, {"/doctor/recordings/absent", 2}} {
			r := httptest.NewRequest(http.MethodGet, tt.path, nil)
			r.RemoteAddr, r.Host = "127.0.0.1:1", "127.0.0.1"
			w := httptest.NewRecorder()
			d.Handler().ServeHTTP(w, r)
			page, err := html.Parse(w.Body)
			if err != nil {
				t.Fatal(err)
			}
			texts := 0
			for n := range page.Descendants() {
				if n.Type == html.TextNode {
					texts += strings.Count(n.Data, text)
				}
				if n.Type == html.ElementNode {
					checkElement(t, tt.path, n)
				}
			}
			if texts < tt.least {
				t.Errorf("%s: the page has %q %d times, at least %d are expected", tt.path, text, texts, tt.least)
			}
		}
	}
}

// checkElement fails the test for an element that only a text from outside can have made.
func checkElement(t *testing.T, path string, n *html.Node) {
	t.Helper()
	if n.Data == "img" || n.Data == "script" && (n.FirstChild != nil || len(n.Attr) == 0) {
		t.Errorf("%s has the element %s %v", path, n.Data, n.Attr)
	}
	for _, a := range n.Attr {
		switch {
		case strings.HasPrefix(a.Key, "on"), a.Key == "style":
			t.Errorf("%s has the attribute %s of %s", path, a.Key, n.Data)
		case a.Key == "href" || a.Key == "src" || a.Key == "action":
			if a.Val != "#content" && (!strings.HasPrefix(a.Val, "/") || strings.HasPrefix(a.Val, "//")) {
				t.Errorf("%s leads to %q", path, a.Val)
			}
		}
	}
}
