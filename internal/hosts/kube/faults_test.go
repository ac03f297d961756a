package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// answer starts a server that answers as a test specifies, for answers that a real
// server cannot be made to give. It returns a client of the server.
func answer(t *testing.T, f http.HandlerFunc) *Client {
	t.Helper()
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	c, err := New(Config{Server: s.URL + "/base/"}, Options{Limit: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func fail(w http.ResponseWriter, code int, reason, more string) {
	w.WriteHeader(code)
	fmt.Fprintf(w, `{"kind":"Status","code":%d,"reason":%q,"message":"as the test wants it"%s}`, code, reason, more)
}

// A list with an expired continue token is restarted, a limited number of times.
func TestListBeginsAnew(t *testing.T) {
	for _, gone := range []int{1, 100} {
		asked := 0
		c := answer(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/base/api/v1/nodes" || r.URL.Query().Get("limit") != pageSize {
				t.Errorf("asked for %s", r.URL)
			}
			asked++
			if r.URL.Query().Get("continue") == "" {
				io.WriteString(w, `{"metadata":{"continue":"more"},"items":[{"metadata":{"name":"a"}}]}`)
				return
			}
			if gone > 0 {
				gone--
				fail(w, http.StatusGone, "Expired", "")
				return
			}
			io.WriteString(w, `{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"b"}}]}`)
		})
		nodes, err := c.Nodes(t.Context(), "")
		if gone == 0 && (err != nil || len(nodes) != 2) {
			t.Errorf("%v, %v", nodes, err)
		}
		if gone > 0 && (Code(err) != http.StatusGone || asked != 2*listAgain) {
			t.Errorf("after %d requests: %v", asked, err)
		}
	}
}

func TestStatus(t *testing.T) {
	var code int
	var reason, more string
	c := answer(t, func(w http.ResponseWriter, r *http.Request) {
		if code == http.StatusServiceUnavailable {
			w.Header().Set("Retry-After", "7")
		}
		fail(w, code, reason, more)
	})
	for _, x := range []struct {
		code         int
		reason, more string
		transient    bool
		retry        time.Duration
	}{
		{429, "TooManyRequests", `,"details":{"retryAfterSeconds":3,"causes":[{"reason":"DisruptionBudget"}]}`, true, 3 * time.Second},
		{503, "ServiceUnavailable", "", true, 7 * time.Second},
		{500, "InternalError", "", true, 0},
		{500, "", "", false, 0},
		{409, "Conflict", "", false, 0},
		{403, "Forbidden", "", false, 0},
		{429, "", `,"details":{"retryAfterSeconds":1000000}`, true, maxRetry},
	} {
		code, reason, more = x.code, x.reason, x.more
		_, err := c.Node(t.Context(), "n")
		if Code(err) != x.code || Transient(err) != x.transient || RetryAfter(err) != x.retry {
			t.Errorf("%+v: code %d, transient %v, retry %v: %v", x, Code(err), Transient(err), RetryAfter(err), err)
		}
		if HasCause(err, CauseBudget) != (x.more != "" && x.retry == 3*time.Second) {
			t.Errorf("%+v: cause of %v", x, err)
		}
	}
}

// A server that does not answer in time counts as unreachable; a caller that ends is
// not a server's failure.
func TestSilentServer(t *testing.T) {
	wait := make(chan struct{})
	c := answer(t, func(http.ResponseWriter, *http.Request) { <-wait })
	defer close(wait)
	c.opt.Limit = 50 * time.Millisecond
	_, err := c.Node(t.Context(), "n")
	var gone *UnreachableError
	if !errors.As(err, &gone) || !Transient(err) {
		t.Errorf("a silent server: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Node(ctx, "n"); !errors.Is(err, context.Canceled) || Transient(err) {
		t.Errorf("a caller that ended: %v", err)
	}
}

// Patiently retries transient failures with growing pauses, and not beyond its limit.
func TestPatiently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, tries := time.Now(), 0
		err := Patiently(t.Context(), 10*time.Minute, func() error {
			tries++
			return &UnreachableError{errors.New("gone")}
		}, nil)
		if took := time.Since(begin); err == nil || took > 10*time.Minute || took < 9*time.Minute || tries < 20 || tries > 50 {
			t.Errorf("%d tries in %v: %v", tries, took, err)
		}
		tries = 0
		if err := Patiently(t.Context(), time.Hour, func() error { tries++; return errors.New("for good") }, nil); err == nil || tries != 1 {
			t.Errorf("%d tries of what fails for good", tries)
		}
	})
}

// A pause is never shorter than what the server asked for, and not bounded by our own
// longest one; a date will do, too.
func TestPause(t *testing.T) {
	err := error(&StatusError{Code: 429, Retry: 40 * time.Second})
	for n := range 100 {
		if d := PauseUpTo(10*time.Second, n, nil); d < firstPause/2 || d > 10*time.Second {
			t.Errorf("try %d: %v", n, d)
		}
		if d := Pause(n, err); d < 40*time.Second || d > 45*time.Second {
			t.Errorf("try %d, asked for 40s: %v", n, d)
		}
	}
	for header, want := range map[string]time.Duration{"": 0, "7": 7 * time.Second, "-1": 0, "99999999999": maxRetry, "soon": 0} {
		if d := retryAfter(header); d != want {
			t.Errorf("Retry-After %q: %v, want %v", header, d, want)
		}
	}
	if d := retryAfter(time.Now().Add(time.Minute).UTC().Format(http.TimeFormat)); d < 50*time.Second || d > time.Minute {
		t.Errorf("a date in a minute: %v", d)
	}
}

func TestEventName(t *testing.T) {
	for _, about := range []string{"web", strings.Repeat("a", 253), strings.Repeat("a", 235) + "-b"} {
		if n := EventName(about); len(n) > maxName || n == EventName(about) || strings.Contains(n, "-.") {
			t.Errorf("of %s: %s", about, n)
		}
	}
}
