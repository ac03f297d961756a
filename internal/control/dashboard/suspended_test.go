package dashboard_test

import (
	"net/http"
	"strings"
	"testing"

	"holdfast"
	"holdfast/internal/control/api"
)

// A suspended session is found by its state. Its page shows the saved memory, and the
// buttons resume or delete it.
func TestASuspendedSession(t *testing.T) {
	s := serve(t, true)
	s.login(t, adminToken)
	s.start(t, "alice", "bob", "torn")
	suspend := func(keys ...holdfast.SessionKey) {
		t.Helper()
		for _, key := range keys {
			if _, err := s.back.SuspendSession(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
	}
	suspend("alice", "torn")
	list := s.get(t, "/sessions?state=suspended").body
	says(t, "/sessions", list, "<option selected>suspended</option>", `id="session-alice"`, `<span class="tag suspended">`)
	if strings.Contains(list, `id="session-bob"`) {
		t.Error("a running session is among the suspended ones")
	}
	says(t, "/", s.get(t, "/").body, `href="/sessions?state=suspended">2 suspended</a>`)
	body := s.get(t, "/sessions/alice").body
	says(t, "its page", body, "1.4 MiB, kept until", "<button>Resume</button>")
	if strings.Contains(body, "<button>Replace") {
		t.Error("there is nothing to replace")
	}
	for act, want := range map[string]string{"alice/resume": "alice continues with its memory", "torn/resume": "torn is ready on node n1, and its memory is lost: the image is incomplete", "bob/resume": "bob is ready on node n1."} {
		if r := s.do(t, "POST", "/sessions/"+act, nil); r.status != http.StatusOK || !strings.Contains(r.body, want) {
			t.Errorf("%s: status %d, want %q: %s", act, r.status, want, r.body)
		}
	}
	suspend("alice")
	if r := s.do(t, "POST", "/sessions/alice/stop", nil); r.status != http.StatusOK {
		t.Errorf("deleting it: status %d: %s", r.status, r.body)
	}
	if body := s.get(t, "/sessions").body; strings.Contains(body, `id="session-alice"`) {
		t.Error("it still exists")
	}
}

// A session that sleeps is marked in the list. Its page shows since when, and what woke it.
func TestASleepingSession(t *testing.T) {
	s := serve(t, true)
	s.login(t, adminToken)
	s.start(t, "sleeper", "bob")
	if list := s.get(t, "/sessions").body; strings.Count(list, `<span class="tag">asleep</span>`) != 1 {
		t.Error(list)
	}
	says(t, "its page", s.get(t, "/sessions/sleeper").body, `<span class="tag">asleep</span>`, "asleep since <time", "13.5 MiB in memory", "by websocket, 3 sleeps")
	if body := s.get(t, "/sessions/bob").body; strings.Contains(body, "<dt>Sleep") {
		t.Error("it never sleeps")
	}
}

// An admin sees the detached commands of a session. A reader does not: command lines may
// contain secrets.
func TestDetachedCommandsOfASession(t *testing.T) {
	s := serve(t, true)
	s.start(t, "alice", "bob")
	for _, words := range [][]string{{"wait", "--password=<b>"}, {"exit", "3"}} {
		if _, err := s.back.StartCommand(t.Context(), "alice", api.ExecRequest{Command: words}); err != nil {
			t.Fatal(err)
		}
	}
	s.login(t, readToken)
	if body := s.get(t, "/sessions/alice").body; strings.Contains(body, "password") || strings.Contains(body, "Detached commands") {
		t.Error("a reader sees the commands")
	}
	s.login(t, adminToken)
	says(t, "its page", s.get(t, "/sessions/alice").body, "<h2>Detached commands</h2>", "wait --password=&lt;b&gt;", "<td>running</td>", "<td>exit 3</td>")
	if strings.Contains(s.get(t, "/sessions/bob").body, "Detached commands") {
		t.Error("a session without commands has a list of them")
	}
}

// Without any session the page says how to start one.
func TestNoSessionYet(t *testing.T) {
	s := serve(t, false)
	says(t, "/sessions", s.get(t, "/sessions").body, "There are no sessions.", "holdfast session start")
	says(t, "/sessions?q=x", s.get(t, "/sessions?q=x").body, "No session matches")
}

// The page of a session tells why it ended, also if there is none. A reader does not see the
// output of its container.
func TestHowASessionEnded(t *testing.T) {
	s := serve(t, true)
	s.login(t, readToken)
	body := s.get(t, "/sessions/broken").body
	says(t, "a reader's page", body, "There is no session broken now.", "it did not boot (ready)", "container", ">3<")
	if strings.Contains(body, "no \x1b") || strings.Contains(body, "listening on") {
		t.Error("a reader sees a container's output")
	}
	says(t, "the page of one out of memory", s.get(t, "/sessions/oom").body, "its container ran out of memory", "64.0 MiB of 64.0 MiB")
	s.login(t, adminToken)
	says(t, "an admin's page", s.get(t, "/sessions/broken").body, "Last output of the boot of epoch 8", "listening on :8080")
}
