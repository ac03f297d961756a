package preempt

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"
)

// azureServer is Azure's metadata service, as "Scheduled Events for Linux VMs" describes
// it: 400 without the header or a known version. An approved event has started, and a
// started event has no NotBefore.
type azureServer struct {
	mu          sync.Mutex
	incarnation int
	events      []map[string]any
	approved    []string
}

func (s *azureServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Header.Get("Metadata") != "true" || r.Header.Get("X-Forwarded-For") != "" {
		http.Error(w, `{"error": "Bad request. Required metadata header not specified"}`, http.StatusBadRequest)
		return
	}
	q := r.URL.Query()
	switch {
	case r.URL.Path == "/metadata/instance/compute/name" && q.Get("api-version") == "2021-02-01" && q.Get("format") == "text":
		_, _ = io.WriteString(w, "web_3")
	case r.URL.Path != "/metadata/scheduledevents" || q.Get("api-version") != "2020-07-01":
		w.WriteHeader(http.StatusBadRequest)
	case r.Method == http.MethodGet:
		_ = json.NewEncoder(w).Encode(map[string]any{"DocumentIncarnation": s.incarnation, "Events": s.events})
	case r.Method == http.MethodPost:
		s.approve(w, r)
	default:
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
}

func (s *azureServer) approve(w http.ResponseWriter, r *http.Request) {
	var body struct{ StartRequests []struct{ EventId string } } //nolint:revive // Azure's spelling
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&body); err != nil || len(body.StartRequests) == 0 {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	for _, start := range body.StartRequests {
		i := slices.IndexFunc(s.events, func(e map[string]any) bool { return e["EventId"] == start.EventId })
		if i < 0 {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		s.events[i]["EventStatus"], s.events[i]["NotBefore"] = "Started", ""
		s.approved = append(s.approved, start.EventId)
	}
}

// schedule replaces all events.
func (s *azureServer) schedule(events ...map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.incarnation++
	s.events = append([]map[string]any{}, events...)
}

func scheduled(id, kind string, at time.Time, machines ...string) map[string]any {
	return map[string]any{
		"EventId": id, "EventType": kind, "ResourceType": "VirtualMachine", "Resources": machines,
		"EventStatus": "Scheduled", "NotBefore": at.Format(http.TimeFormat),
		"Description": "", "EventSource": "Platform", "DurationInSeconds": -1,
	}
}

func newAzureServer(t *testing.T) (*azureServer, *cloud) {
	s := &azureServer{}
	s.schedule()
	return s, serve(t, s)
}

func azureFor(c *cloud, acknowledge bool, now func() time.Time) *azure {
	a := newAzure(c.url, acknowledge)
	a.poll, a.first, a.timeout, a.now = time.Millisecond, time.Second, time.Second, now
	return a
}

func TestAzureEvents(t *testing.T) {
	s, c := newAzureServer(t)
	clock := newClock()
	l := listen(t, azureFor(c, false, clock.now))
	soon := clock.now().Add(30 * time.Second)

	s.schedule(scheduled("1", "Preempt", soon, "web_1", "web_2"))
	c.turns(t, 4)
	l.silent(t) // the event affects other machines

	s.schedule(scheduled("2", "Freeze", soon, "web_3"))
	l.want(t, Rebalance, "Freeze", soon)
	s.schedule()
	l.want(t, Withdrawn, "Freeze", time.Time{})

	s.schedule(scheduled("3", "Preempt", soon, "web_1", "WEB_3"))
	n := l.want(t, Terminate, "Preempt is scheduled", soon)
	if err := n.Done(t.Context()); err != nil {
		t.Error(err)
	}
	c.turns(t, 4)
	l.silent(t)
	for i, kind := range []string{"Terminate", "Reboot", "Redeploy"} {
		s.schedule(scheduled(kind, kind, soon.Add(time.Duration(i)*time.Minute), "web_3"))
		l.want(t, Terminate, kind, soon.Add(time.Duration(i)*time.Minute))
	}
	odd := scheduled("4", "Preempt", soon, "web_3")
	odd["NotBefore"] = "2026-03-01 12:00"
	s.schedule(odd)
	l.want(t, Terminate, "Preempt", time.Time{}) // an event without a time is reported, too

	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.approved) > 0 {
		t.Errorf("approved %v without being told to", s.approved)
	}
}

func TestAzureEventDaysAhead(t *testing.T) {
	s, c := newAzureServer(t)
	clock := newClock()
	l := listen(t, azureFor(c, false, clock.now))
	then := clock.now().Add(7 * 24 * time.Hour)
	s.schedule(scheduled("1", "Redeploy", then, "web_3"))
	l.want(t, Rebalance, "Redeploy", then)
	clock.move(7*24*time.Hour - 15*time.Minute)
	l.want(t, Terminate, "Redeploy", then)
}

func TestAzureEventIsApprovedWhenDone(t *testing.T) {
	s, c := newAzureServer(t)
	clock := newClock()
	l := listen(t, azureFor(c, true, clock.now))
	soon := clock.now().Add(10 * time.Minute)
	s.schedule(scheduled("1", "Terminate", soon, "web_3"))
	n := l.want(t, Terminate, "Terminate", soon)
	c.turns(t, 4)
	s.mu.Lock()
	if len(s.approved) > 0 {
		t.Error("approved before anything was done")
	}
	s.mu.Unlock()
	if err := n.Done(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.turns(t, 4)
	l.silent(t) // its start is not another event
	s.mu.Lock()
	if !slices.Equal(s.approved, []string{"1"}) {
		t.Errorf("approved %v", s.approved)
	}
	s.mu.Unlock()

	s.schedule()
	l.want(t, Withdrawn, "Terminate", time.Time{})
	if n.Done(t.Context()) == nil {
		t.Error("an event that no longer exists was approved")
	}
}

func TestAzureSurvivesFaults(t *testing.T) {
	s, c := newAzureServer(t)
	survives(t, c, azureFor(c, false, time.Now), func() {
		s.schedule(scheduled("1", "Preempt", time.Now().Add(time.Minute), "web_3"))
	})
}
