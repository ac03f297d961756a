package agent

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// A model's program starts a session, runs a command in its container, reads on in the
// output, reads and writes files, and stops it. The agent's log has each change, and what made it.
func TestMCP(t *testing.T) {
	h := newHost(t, "templates:"+shellTemplate)
	h.start()
	cmd := exec.Command(holdfastBinary(t), "mcp", "--allow-write")
	cmd.Env = append(os.Environ(), "HOLDFAST_SOCKET="+h.socket)
	cmd.Stderr = os.Stderr
	c, err := sdk.NewClient(&sdk.Implementation{Name: "test"}, nil).Connect(t.Context(), &sdk.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	fails := func(tool string, args map[string]any, want string) {
		t.Helper()
		r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: tool, Arguments: args})
		if err != nil || !r.IsError || !strings.Contains(r.Content[0].(*sdk.TextContent).Text, want) {
			t.Errorf("%s: %+v, %v", tool, r, err)
		}
	}
	call := func(tool string, args map[string]any, v any) {
		t.Helper()
		r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: tool, Arguments: args})
		if err != nil || r.IsError {
			t.Fatalf("%s: %+v, %v", tool, r, err)
		}
		b, err := json.Marshal(r.StructuredContent)
		if err != nil || json.Unmarshal(b, v) != nil {
			t.Fatalf("%s: %s, %v", tool, b, err)
		}
	}
	type output struct {
		ID, Output, Cut string
		Running         bool
		ExitCode        int `json:"exit_code"`
		Next            int `json:"next_offset"`
	}
	var session struct{ State, Address string }
	if call("session_start", map[string]any{"key": "alice"}, &session); session.State != "ready" || session.Address == "" {
		t.Errorf("%+v", session)
	}
	var o output
	call("session_exec", map[string]any{"key": "alice", "command": []string{"sh", "-c", "seq 1 3000; echo end; exit 3"}, "max_bytes": 9}, &o)
	if o.Output != "3000\nend\n" || o.ExitCode != 3 || o.Running || !strings.HasPrefix(o.Cut, "13888 bytes before") {
		t.Errorf("%+v", o)
	}
	if call("session_output", map[string]any{"key": "alice", "id": o.ID, "max_bytes": 4}, &o); o.Output != "1\n2\n" || o.Next != 4 {
		t.Errorf("from the begin: %+v", o)
	}
	call("session_exec", map[string]any{"key": "alice", "command": []string{"sh", "-c", "echo up; sleep 3600"}, "wait_seconds": 1}, &o)
	if !o.Running || o.Output != "up\n" {
		t.Errorf("a command that runs on: %+v", o)
	}
	var nothing struct{}
	call("session_signal", map[string]any{"key": "alice", "id": o.ID, "signal": "KILL"}, &nothing)
	if call("session_output", map[string]any{"key": "alice", "id": o.ID, "wait_seconds": 60}, &o); o.Running || o.ExitCode != 137 {
		t.Errorf("after the signal: %+v", o)
	}
	// No path leaves the container's root.
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("the host's"), 0o600); err != nil {
		t.Fatal(err)
	}
	call("session_exec", map[string]any{"key": "alice", "command": []string{"ln", "-s", secret, "/link"}}, &o)
	for _, path := range []string{secret, "/../../../../../.." + secret, "/link", "/proc/1/root" + secret} {
		fails("file_read", map[string]any{"key": "alice", "path": path}, "error: ")
	}
	fails("file_read", map[string]any{"key": "alice", "path": "/tmp"}, "error: ")
	var file struct{ Content, Type string }
	call("file_write", map[string]any{"key": "alice", "path": "/tmp/a", "content": "text\n", "mode": "600"}, &file)
	call("file_read", map[string]any{"key": "alice", "path": "/tmp/../tmp/a"}, &file)
	call("session_exec", map[string]any{"key": "alice", "command": []string{"stat", "-c", "%a %u", "/tmp/a"}}, &o)
	if file.Content != "text\n" || file.Type != "file" || o.Output != "600 0\n" {
		t.Errorf("%+v, %+v", file, o)
	}
	for _, tool := range []string{"agent_status", "node_list", "spinup_list", "spinup_stats", "gc_plan", "protect_history", "session_commands"} {
		args := map[string]any{}
		if tool == "session_commands" {
			args["key"] = "alice"
		}
		call(tool, args, &nothing)
	}
	call("session_stop", map[string]any{"key": "alice"}, &nothing)
	if err := c.Close(); err != nil {
		t.Errorf("the end: %v", err)
	}
	h.signal(syscall.SIGTERM)
	h.wait()
	log := h.errs.String()
	for _, act := range []string{"startSession", "startCommand", "signalCommand", "readFile", "writeFile", "stopSession"} {
		if !strings.Contains(log, "act="+act+` caller="unix socket"`) {
			t.Errorf("the log has no %s", act)
		}
	}
	if n := strings.Count(log, "via=mcp session=alice"); n < 5 {
		t.Errorf("the log has %d lines of mcp", n)
	}
}
