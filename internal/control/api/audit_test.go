package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/apitest"
	"holdfast/internal/control/api/client"
)

// ledger is a log with readable audit lines.
type ledger struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *ledger) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *ledger) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

// take returns the audit lines so far and forgets them.
func (l *ledger) take(t *testing.T) (lines []map[string]any) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for d := json.NewDecoder(&l.text); ; {
		var line map[string]any
		if err := d.Decode(&line); err == io.EOF {
			return lines
		} else if err != nil {
			t.Fatal(err)
		}
		if line["audit"] == true {
			lines = append(lines, line)
		}
	}
}

// one returns the only line once it is written, which is after the answer.
func (l *ledger) one(t *testing.T) map[string]any {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		switch lines := l.take(t); {
		case len(lines) == 1:
			return lines[0]
		case len(lines) > 1 || time.Now().After(deadline):
			t.Fatalf("%d audit lines: %v", len(lines), lines)
		}
	}
}

// patience is the time limit of a wait.
const patience = 20 * time.Second

// holds reports an error if the line lacks a wanted attribute; "" means that it must be
// absent.
func holds(t *testing.T, what string, line map[string]any, want map[string]string) {
	t.Helper()
	for name, value := range want {
		got := ""
		if v, ok := line[name]; ok {
			got = fmt.Sprint(v)
		}
		if got != value {
			t.Errorf("%s: %s is %q, want %q, in %v", what, name, got, value, line)
		}
	}
	if _, ok := line["took"]; !ok || line["level"] != "INFO" {
		t.Errorf("%s: no duration, or not of level info: %v", what, line)
	}
}

// Each request that needs an admin has one line, also if it is refused or fails.
func TestAudit(t *testing.T) {
	var log ledger
	b := &apitest.Backend{}
	if _, err := b.StartSession(t.Context(), "alice", ""); err != nil {
		t.Fatal(err)
	}
	s := serve(t, b, api.Options{Log: log.logger(), Tokens: tokens(t, "deploy "+newToken+"\n", oldToken)})
	for _, c := range []struct {
		name, method, path, body, token string
		want                            map[string]string
	}{
		{"stop", "POST", "/v1/sessions/alice/stop", "", newToken,
			map[string]string{"act": "stopSession", "caller": "token deploy", "session": "alice", "result": "ok", "err": "", "pid": ""}},
		{"stop of an unknown key", "POST", "/v1/sessions/missing/stop", "", newToken,
			map[string]string{"act": "stopSession", "session": "missing", "result": "not_found", "err": "session missing: not found"}},
		{"with a token to read", "POST", "/v1/node/drain", "", oldToken,
			map[string]string{"act": "drainNode", "caller": "token read-1", "result": "read_only"}},
		{"without a token", "POST", "/v1/agent/stop", "", "",
			map[string]string{"act": "stopAgent", "caller": "unknown", "result": "unauthorized"}},
		{"cordon by name", "POST", "/v1/nodes/n1/cordon", "", newToken,
			map[string]string{"act": "cordonNodeByID", "node": "n1", "result": "ok"}},
		{"uncordon", "POST", "/v1/node/uncordon", "", newToken, map[string]string{"act": "uncordonNode", "result": "ok"}},
		{"logs", "GET", "/v1/sessions/missing/logs", "", newToken, map[string]string{"act": "sessionLogs", "result": "not_found"}},
		{"replace", "POST", "/v1/replace", `{"node":"n1"}`, newToken,
			map[string]string{"act": "replaceSessions", "which": "node n1", "replaced": "0", "failed": "0", "result": "ok"}},
		{"drain", "POST", "/v1/node/drain", `{"engine_all":true}`, newToken,
			map[string]string{"act": "drainNode", "engine_all": "true", "dead": "0", "left": "0", "result": "ok"}},
		{"bad body", "POST", "/v1/sessions/a/start", `{"x":1}`, newToken, map[string]string{"act": "startSession", "result": "bad_request"}},
		{"long key", "POST", "/v1/sessions/" + strings.Repeat("x", 2000) + "/start", "", newToken,
			map[string]string{"session": strings.Repeat("x", 256), "result": "bad_key"}},
	} {
		call(t, s, c.method, c.path, c.body, "Authorization: Bearer "+c.token, "X-Holdfast-Caller: token root")
		line := log.one(t)
		c.want["for"] = "" // a caller that is not a node cannot name another caller
		holds(t, c.name, line, c.want)
		if from, _ := line["from"].(string); !strings.HasPrefix(from, "127.0.0.1:") {
			t.Errorf("%s: from %q", c.name, from)
		}
	}
	call(t, s, "GET", "/v1/sessions", "", "Authorization: Bearer "+newToken)
	call(t, s, "POST", "/v1/sessions/a/start", "{}", "Authorization: Bearer "+newToken, "Sec-Fetch-Site: cross-site")
	holds(t, "a line for another site's page, or for a reader", log.one(t), map[string]string{"act": "startSession", "result": "cross_origin", "caller": "token deploy"})
}

// Over the unix socket the line names the process. A stream has its line when it ends.
func TestAuditOfTheSocket(t *testing.T) {
	var log ledger
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	b := &apitest.Backend{}
	if _, err := b.StartSession(t.Context(), "alice", ""); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- api.Serve(ctx, l, api.New(b.Parts(), api.Options{Admin: true, Log: log.logger()}), log.logger())
	}()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	c, err := client.New(client.Options{Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	me := map[string]string{"caller": "unix socket", "pid": fmt.Sprint(os.Getpid()), "uid": fmt.Sprint(os.Getuid()), "from": ""}
	if err := c.Cordon(ctx, ""); err != nil {
		t.Fatal(err)
	}
	holds(t, "cordon", log.one(t), me)
	code, err := c.Exec(ctx, "alice", api.Exec{Command: []string{"exit", "3", "--password=x"}})
	if code != 3 || err != nil {
		t.Errorf("%d, %v", code, err)
	}
	line := log.one(t)
	holds(t, "exec", line, me)
	holds(t, "exec", line, map[string]string{"act": "execSession", "session": "alice", "command": "exit"})
	if _, err := c.Exec(ctx, "alice", api.Exec{Command: []string{"nothing"}}); err == nil {
		t.Error("an unknown command was run")
	}
	holds(t, "exec that fails", log.one(t), map[string]string{"act": "execSession", "result": "not_found"})
	d, err := c.StartCommand(ctx, "alice", api.ExecRequest{Command: []string{"wait", "--password=x"}})
	if err != nil {
		t.Fatal(err)
	}
	holds(t, "a detached command", log.one(t), map[string]string{"act": "startCommand", "session": "alice", "command": "wait", "id": d.ID})
	if err := c.SignalCommand(ctx, "alice", d.ID, "9"); err != nil {
		t.Error(err)
	}
	holds(t, "a signal", log.one(t), map[string]string{"act": "signalCommand", "id": d.ID, "signal": "SIGKILL"})
	if code, err := c.Attach(ctx, "alice", d.ID, api.AttachRequest{}, api.Exec{}, nil); code != 137 || err != nil {
		t.Errorf("%d, %v", code, err)
	}
	holds(t, "attach", log.one(t), map[string]string{"act": "attachCommand", "id": d.ID, "result": "ok"})
	if err := c.Logs(ctx, "alice", api.LogOptions{}, io.Discard); err != nil {
		t.Error(err)
	}
	holds(t, "logs", log.one(t), map[string]string{"act": "sessionLogs", "result": "ok"})
}

// The line of a passed-on request has the node, and the caller of the first node.
func TestAuditOfANode(t *testing.T) {
	var log ledger
	s := serve(t, &apitest.Backend{}, api.Options{Log: log.logger(), Peer: func(*http.Request) holdfast.NodeID { return "n2" }})
	call(t, s, "POST", "/v1/nodes/n1/cordon", "", "X-Holdfast-Passed: 1", "X-Holdfast-Caller: token deploy")
	holds(t, "passed on", log.one(t), map[string]string{"caller": "node n2", "for": "token deploy", "node": "n1", "result": "ok"})
	call(t, s, "POST", "/v1/nodes/n1/uncordon", "")
	holds(t, "of the node itself", log.one(t), map[string]string{"caller": "node n2", "for": ""})
}

// Unknown callers cannot fill the log: the lines per second are limited, and the next
// line counts the rest.
func TestUnknownCallersAreLimited(t *testing.T) {
	p := api.NewUnknownLimit()
	now := time.Now()
	lines := 0
	for range 1000 {
		if _, ok := p(now); ok {
			lines++
		}
	}
	if lines != 10 {
		t.Errorf("%d lines at once", lines)
	}
	if skipped, ok := p(now.Add(time.Second)); !ok || skipped != 990 {
		t.Errorf("a second later: %d, %v", skipped, ok)
	}
	if skipped, ok := p(now.Add(time.Second)); !ok || skipped != 0 {
		t.Errorf("and again: %d, %v", skipped, ok)
	}
}
