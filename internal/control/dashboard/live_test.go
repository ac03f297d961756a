package dashboard_test

import (
	"bufio"
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"holdfast/internal/control/dashboard"
)

// follow reads a stream's messages until the returned function is called.
func (s *site) follow(t *testing.T, path string) (messages <-chan string, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := s.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if got := res.Header.Get("Content-Type"); res.StatusCode != http.StatusOK || got != "text/event-stream" {
		t.Fatalf("%s: status %d, %s", path, res.StatusCode, got)
	}
	out := make(chan string, 100)
	go func() {
		defer close(out)
		defer res.Body.Close()
		var message strings.Builder
		for lines := bufio.NewScanner(res.Body); lines.Scan(); {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				message.WriteString(data + "\n")
			} else if lines.Text() == "" && message.Len() > 0 {
				out <- message.String()
				message.Reset()
			}
		}
	}()
	return out, func() {
		cancel()
		for range out {
		}
	}
}

// No line end of a text ends a line of an event before its prefix.
func TestEventLines(t *testing.T) {
	text := dashboard.EventOf("one\rtwo\r\nthree\nfour")
	body, ok := strings.CutSuffix(text, "\n\n")
	if !ok || strings.Contains(text, "\r") {
		t.Errorf("%q", text)
	}
	for line := range strings.SplitSeq(body, "\n") {
		if !strings.HasPrefix(line, "data: ") {
			t.Errorf("%q in %q", line, text)
		}
	}
}

const patience = time.Minute

// until reads messages until one contains the text, and returns it.
func until(t *testing.T, messages <-chan string, text string) string {
	t.Helper()
	for limit := time.After(patience); ; {
		select {
		case m, ok := <-messages:
			if !ok {
				t.Fatalf("the stream ended before %q", text)
			}
			if strings.Contains(m, text) {
				return m
			}
		case <-limit:
			t.Fatalf("no message has %q", text)
		}
	}
}

func TestAStreamTellsWhatChanged(t *testing.T) {
	s := serve(t, true)
	s.login(t, adminToken)
	s.start(t, "alice")
	one, stopOne := s.follow(t, "/live/sessions")
	defer stopOne()
	two, stopTwo := s.follow(t, "/live/sessions?q=missing")
	defer stopTwo()
	until(t, one, "session-alice")
	if m := until(t, two, "No session matches"); strings.Contains(m, "session-alice") {
		t.Errorf("a search for another key finds alice: %s", m)
	}
	s.start(t, "bob")
	if m := until(t, one, "session-bob"); !strings.Contains(m, `hx-target="#list"`) || strings.Contains(m, `hx-target="#notice"`) {
		t.Errorf("only the list and the figures have changed, the message is: %s", m)
	}
	// The other page gets the new figures; its list is unchanged.
	if m := until(t, two, `data-metric="holdfast_node_sessions{state=&#34;ready&#34;}">2<`); strings.Contains(m, `hx-target="#list"`) {
		t.Errorf("an unchanged list was sent: %s", m)
	}
	if r := s.do(t, "POST", "/logout", nil); r.status != http.StatusSeeOther {
		t.Fatalf("logout: status %d", r.status)
	}
	s.start(t, "carol")
	for limit := time.After(patience); ; { // the streams end with the login, without another message
		select {
		case m, ok := <-one:
			if !ok {
				return
			}
			if strings.Contains(m, "carol") {
				t.Fatal("a stream continues after the logout")
			}
		case <-limit:
			t.Fatal("the stream does not end with the login")
		}
	}
}
