package preempt

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/test/poll"
)

// patience bounds each wait of a test.
const patience = 20 * time.Second

// listener runs sources as the agent does, but restarts failed ones without a pause.
type listener struct {
	notices chan Notice
	log     *logBuffer
	stop    func() // and wait for the end
}

func listen(t *testing.T, sources ...Source) listener {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := listener{notices: make(chan Notice, 100), log: &logBuffer{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(ctx, sources, func(n Notice) { l.notices <- n }, slog.New(slog.NewTextHandler(l.log, nil)), time.Millisecond, 10*time.Millisecond)
	}()
	l.stop = func() {
		cancel()
		select {
		case <-done:
		case <-time.After(patience):
			t.Error("the sources have not ended")
		}
	}
	t.Cleanup(l.stop)
	return l
}

// want waits for the next notice and checks it.
func (l listener) want(t *testing.T, kind Kind, reason string, deadline time.Time) Notice {
	t.Helper()
	select {
	case n := <-l.notices:
		if n.Kind != kind || !strings.Contains(n.Reason, reason) || !n.Deadline.Equal(deadline) || n.Source == "" || n.Done == nil {
			t.Fatalf("got %+v, want %s with %q by %v", n, kind, reason, deadline)
		}
		return n
	case <-time.After(patience):
		t.Fatalf("no notice; the log:\n%s", l.log)
	}
	panic("not reached")
}

// silent checks that no notice came since the last one.
func (l listener) silent(t *testing.T) {
	t.Helper()
	select {
	case n := <-l.notices:
		t.Fatalf("told %+v", n)
	default:
	}
}

// logBuffer keeps log lines.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// clock is a time that tests move.
type clock struct {
	mu   sync.Mutex
	time time.Time
}

func newClock() *clock { return &clock{time: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.time
}

func (c *clock) move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.time = c.time.Add(d)
}

// cloud is a metadata service of the test that can fail.
type cloud struct {
	url string

	mu        sync.Mutex
	fault     string // hang, garbage, error, redirect; "" for none
	answers   int    // of any kind
	elsewhere int    // requests that followed a redirect
}

func serve(t *testing.T, handler http.Handler) *cloud {
	t.Helper()
	c := &cloud{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		fault := c.fault
		if r.URL.Query().Has("elsewhere") {
			c.elsewhere++
			fault = ""
		}
		c.mu.Unlock()
		defer func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.answers++
		}()
		switch fault {
		case "hang":
			<-r.Context().Done()
		case "garbage":
			w.Header().Set("ETag", "x")
			w.Header().Set("Metadata-Flavor", "Google")
			w.Header().Set(awsTTLHeader, "60")
			_, _ = w.Write([]byte("<html>hello\x00{{"))
		case "large":
			_, _ = w.Write(make([]byte, maxBody+1))
		case "error":
			http.Error(w, "service unavailable", http.StatusServiceUnavailable)
		case "redirect":
			u := *r.URL
			q := u.Query()
			q.Set("elsewhere", "yes")
			u.RawQuery = q.Encode()
			http.Redirect(w, r, u.String(), http.StatusTemporaryRedirect)
		default:
			handler.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	c.url = s.URL
	return c
}

func (c *cloud) setFault(fault string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault = fault
}

// turns waits until the service has answered n more times. With n of two or more, a source
// that polls has dealt with an answer given after the call.
func (c *cloud) turns(t *testing.T, n int) {
	t.Helper()
	count := func() int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.answers
	}
	from := count()
	poll.Until(t, "polled", func() bool { return count() >= from+n })
}

// faults are all faults of a metadata service.
var faults = []string{"hang", "garbage", "large", "error", "redirect"}

// survives checks a source whose service fails: Run returns an error, earlier notices
// stay valid, and the next event is reported when the service is back. raise makes an
// event.
func survives(t *testing.T, c *cloud, source Source, raise func()) {
	t.Helper()
	l := listen(t, source)
	c.turns(t, 4)
	l.silent(t)
	for _, fault := range faults {
		before := strings.Count(l.log.String(), "level=WARN")
		c.setFault(fault)
		poll.Until(t, "failing by "+fault, func() bool { return strings.Count(l.log.String(), "level=WARN") > before })
		l.silent(t)
		c.setFault("")
		poll.Until(t, "working after "+fault, func() bool { return strings.Count(l.log.String(), "answers again") > before })
	}
	raise()
	select {
	case n := <-l.notices:
		if n.Kind != Terminate {
			t.Errorf("%+v", n)
		}
	case <-time.After(patience):
		t.Fatalf("no notice; the log:\n%s", l.log)
	}
	before := strings.Count(l.log.String(), "level=WARN")
	c.setFault("error")
	poll.Until(t, "failing", func() bool { return strings.Count(l.log.String(), "level=WARN") > before })
	c.setFault("")
	poll.Until(t, "working", func() bool { return strings.Count(l.log.String(), "answers again") > before })
	l.silent(t) // neither withdrawn nor reported again
	if c.elsewhere > 0 {
		t.Errorf("%d redirects were followed", c.elsewhere)
	}
}
