package preempt

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// imds is Amazon's metadata service, version 2 only, as the EC2 user guide describes
// it: 400 for a token request without a valid TTL, 401 without a valid token, 403 for a
// request through a proxy, 404 for an item that does not exist. Amazon's own mock
// (aws/amazon-ec2-metadata-mock) would be better; it is not published as a Go
// module.
type imds struct {
	clock *clock

	mu      sync.Mutex
	tokens  map[string]time.Time // until when
	issued  int
	refused int // with 401
	items   map[string]string
}

func newIMDS(c *clock) *imds {
	return &imds{clock: c, tokens: make(map[string]time.Time), items: make(map[string]string)}
}

func (m *imds) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.Header.Get("X-Forwarded-For") != "" {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	if r.URL.Path == "/latest/api/token" {
		m.token(w, r)
		return
	}
	until, ok := m.tokens[r.Header.Get("X-aws-ec2-metadata-token")]
	if !ok || !m.clock.now().Before(until) {
		m.refused++
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	item, ok := m.items[r.URL.Path]
	if !ok || r.Method != http.MethodGet {
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte("<?xml version=\"1.0\"?><html>404 - Not Found</html>"))
		return
	}
	_, _ = w.Write([]byte(item))
}

func (m *imds) token(w http.ResponseWriter, r *http.Request) {
	ttl, err := strconv.Atoi(r.Header.Get("X-aws-ec2-metadata-token-ttl-seconds"))
	if r.Method != http.MethodPut || err != nil || ttl < 1 || ttl > 21600 {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	m.issued++
	token := fmt.Sprintf("AQAEAM%d==", m.issued)
	m.tokens[token] = m.clock.now().Add(time.Duration(ttl) * time.Second)
	w.Header().Set("X-aws-ec2-metadata-token-ttl-seconds", strconv.Itoa(ttl))
	_, _ = w.Write([]byte(token))
}

func (m *imds) set(path, item string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if item == "" {
		delete(m.items, path)
		return
	}
	m.items[path] = item
}

func awsFor(c *cloud, m *imds) *aws {
	a := newAWS(c.url + "/")
	a.poll, a.timeout, a.now = time.Millisecond, time.Second, m.clock.now
	return a
}

func TestAWSInterruption(t *testing.T) {
	const (
		action    = "/latest/meta-data/spot/instance-action"
		rebalance = "/latest/meta-data/events/recommendations/rebalance"
	)
	m := newIMDS(newClock())
	c := serve(t, m)
	l := listen(t, awsFor(c, m))
	c.turns(t, 6)
	l.silent(t)

	m.set(rebalance, `{"noticeTime": "2026-03-01T12:00:00Z"}`)
	l.want(t, Rebalance, "elevated risk", time.Time{})
	m.set(action, `{"action": "terminate", "time": "2026-03-01T12:02:00Z"}`)
	n := l.want(t, Terminate, "terminate", time.Date(2026, 3, 1, 12, 2, 0, 0, time.UTC))
	if err := n.Done(t.Context()); err != nil {
		t.Error(err)
	}
	c.turns(t, 6)
	l.silent(t) // the notice comes once

	m.set(action, "")
	c.turns(t, 6)
	l.silent(t) // the notice of the risk is still valid
	m.set(rebalance, "")
	l.want(t, Withdrawn, "elevated risk", time.Time{})
	m.set(action, `{"action": "stop", "time": "2026-03-01T13:02:00Z"}`)
	l.want(t, Terminate, "stop", time.Date(2026, 3, 1, 13, 2, 0, 0, time.UTC))
	l.stop()
	if m.refused > 0 {
		t.Errorf("%d requests without a token that holds", m.refused)
	}
}

func TestAWSTokenIsRenewedBeforeItEnds(t *testing.T) {
	m := newIMDS(newClock())
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.ServeHTTP(w, r)
		m.clock.move(20 * time.Minute)
	}))
	l := listen(t, awsFor(c, m))
	c.turns(t, 100)
	l.stop()
	if m.refused > 0 || m.issued < 5 || m.issued > 20 {
		t.Errorf("in 33 hours: %d tokens, %d requests refused", m.issued, m.refused)
	}
}

func TestAWSTokenThatEndsEarly(t *testing.T) {
	m := newIMDS(newClock())
	c := serve(t, m)
	l := listen(t, awsFor(c, m))
	c.turns(t, 4)
	m.mu.Lock()
	clear(m.tokens)
	m.mu.Unlock()
	c.turns(t, 6)
	m.set("/latest/meta-data/spot/instance-action", `{"action": "hibernate", "time": "2026-03-01T12:00:00Z"}`)
	l.want(t, Terminate, "hibernate", time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	l.stop()
	if m.refused == 0 || m.issued != 2 || strings.Contains(l.log.String(), "WARN") {
		t.Errorf("%d refused, %d tokens; the log: %s", m.refused, m.issued, l.log)
	}
}

func TestAWSSurvivesFaults(t *testing.T) {
	m := newIMDS(newClock())
	c := serve(t, m)
	survives(t, c, awsFor(c, m), func() {
		m.set("/latest/meta-data/spot/instance-action", `{"action": "terminate", "time": "2026-03-01T12:02:00Z"}`)
	})
}

func TestAWSRefusesIncompleteItems(t *testing.T) {
	m := newIMDS(newClock())
	c := serve(t, m)
	for path, item := range map[string]string{
		"/latest/meta-data/spot/instance-action":             `{"action": "terminate"}`,
		"/latest/meta-data/events/recommendations/rebalance": `{}`,
	} {
		m.set(path, item)
		err := awsFor(c, m).Run(t.Context(), func(n ...Notice) { t.Errorf("stands: %+v", n) })
		if err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", item, err)
		}
		m.set(path, "")
	}
}
