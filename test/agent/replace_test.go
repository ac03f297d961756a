package agent

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"holdfast"

	"holdfast/test/poll"
)

// A replacement gives sessions new containers from their template, and reports the time of
// each phase. The next agent still has the report.
func TestSessionsAreReplaced(t *testing.T) {
	h := newHost(t, "\ntemplates:"+template+strings.Replace(template, "name: web", "name: other", 1))
	h.start()
	h.must("session", "start", "alice")
	h.must("session", "start", "bob", "--template", "other")
	before := h.running()
	var report holdfast.ReplaceReport
	if err := json.Unmarshal([]byte(h.must("session", "replace", "--node", h.node, "--parallel", "2", "--json")), &report); err != nil {
		t.Fatal(err)
	}
	if len(report.Rows) != 2 || report.Failed() != 0 || len(report.Unbegun)+len(report.Gone) != 0 {
		t.Fatalf("%+v", report)
	}
	templates := map[holdfast.SessionKey]string{"alice": "web", "bob": "other"}
	for _, r := range report.Rows {
		if r.From != holdfast.NodeID(h.node) || r.To != r.From || r.Template != templates[r.Key] ||
			r.Boot.Create <= 0 || r.Boot.Start <= 0 || r.Total < r.Boot.Create+r.Boot.Start+r.Boot.Ready {
			t.Errorf("%+v", r)
		}
	}
	after := h.running()
	for key := range templates {
		if a, b := after[string(key)], before[string(key)]; len(a) != 1 || len(b) != 1 || a[0] == b[0] {
			t.Errorf("%s had container %v and has %v", key, b, a)
		}
	}
	h.open("alice")

	h.must("agent", "stop", "--keep")
	h.wait()
	h.start()
	var past struct {
		Nodes        []struct{ Count int }  `json:"nodes"`
		Replacements []holdfast.Replacement `json:"replacements"`
	}
	if err := json.Unmarshal([]byte(h.must("session", "replacements", "--json")), &past); err != nil {
		t.Fatal(err)
	}
	if len(past.Nodes) != 1 || past.Nodes[0].Count != 2 || len(past.Replacements) != 2 {
		t.Fatalf("%+v", past)
	}
	byKey := func(rows []holdfast.Replacement) map[holdfast.SessionKey]holdfast.Replacement {
		out := map[holdfast.SessionKey]holdfast.Replacement{}
		for _, r := range rows {
			out[r.Key] = r
		}
		return out
	}
	if diff := cmp.Diff(byKey(report.Rows), byKey(past.Replacements)); diff != "" {
		t.Errorf("then and now:\n%s", diff)
	}
}

// A cordoned node keeps its sessions. A replacement there is refused, because the sessions
// could not boot again. The log names the caller.
func TestCordonKeepsSessions(t *testing.T) {
	h := newHost(t, "")
	h.start()
	h.open("alice")
	before := h.running()
	h.must("node", "cordon", h.node)
	h.open("alice")
	if r := h.cli("session", "start", "bob"); r.code != 8 {
		t.Errorf("a new session on a cordoned node: %+v", r)
	}
	if r := h.cli("session", "replace", "alice"); r.code != 6 || !strings.Contains(r.err, "node is draining") {
		t.Errorf("replacing on a cordoned node: %+v", r)
	}
	if diff := cmp.Diff(before, h.running()); diff != "" {
		t.Errorf("containers before and after:\n%s", diff)
	}
	// The next agent keeps the cordon, too.
	h.must("agent", "stop", "--keep")
	h.wait()
	h.launch(&h.out, &h.errs)
	poll.Until(t, "the next agent answers", func() bool { return h.cli("node", "ls").code == 0 })
	if r := h.cli("session", "start", "bob"); r.code != 8 {
		t.Errorf("a new session after a restart: %+v", r)
	}
	h.must("node", "uncordon")
	h.must("session", "start", "bob")
	h.must("agent", "stop")
	h.wait()
	for _, act := range []string{"cordonNodeByID", "replaceSessions", "uncordonNode", "stopAgent"} {
		if want := fmt.Sprintf("audit=true act=%s caller=\"unix socket\" pid=", act); !strings.Contains(h.errs.String(), want) {
			t.Errorf("the log has no line with %s", want)
		}
	}
}

// Tokens of both scopes, from their files.
func TestTokensOfTheAPI(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	h := newHost(t, "")
	text, err := os.ReadFile(h.configFile())
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(text), "api: {", fmt.Sprintf("api: {token_file: %s, read_token_file: %s, ",
		file("admin", "ops 0123456789abcdef"), file("read", "fedcba9876543210")), 1)
	if err := os.WriteFile(h.configFile(), []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	h.start()
	t.Setenv("HOLDFAST_URL", "http://"+h.apiTCP)
	// Without a socket, the address in the environment is used.
	socket := h.socket
	h.socket = ""
	for _, c := range []struct {
		token string
		args  []string
		code  int
	}{
		{"fedcba9876543210", []string{"session", "ls"}, 0},
		{"fedcba9876543210", []string{"node", "cordon"}, 1},
		{"0123456789abcdef", []string{"node", "cordon"}, 0},
		{"0123456789abcdeF", []string{"session", "ls"}, 1},
	} {
		t.Setenv("HOLDFAST_TOKEN", c.token)
		if r := h.cli(c.args...); r.code != c.code {
			t.Errorf("%v with %s: %+v", c.args, c.token, r)
		}
	}
	h.socket = socket
}
