package cli_test

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/internal/control/api/apitest"
)

// ofMCP starts `holdfast mcp` with an agent, and connects to it.
func ofMCP(t *testing.T, args ...string) (*exec.Cmd, *sdk.ClientSession) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "agent.sock")
	if err := startAgent(&apitest.Backend{}, socket, t.Cleanup); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("holdfast", append([]string{"mcp"}, args...)...)
	cmd.Env = append(os.Environ(), "HOLDFAST_SOCKET="+socket, "GORACE="+raceEnv)
	cmd.Stderr = os.Stderr
	kill := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	t.Cleanup(func() { kill.Stop() })
	c, err := sdk.NewClient(&sdk.Implementation{Name: "test"}, nil).Connect(t.Context(), &sdk.CommandTransport{Command: cmd, TerminateDuration: patience}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return cmd, c
}

// A client over standard input and output: the doctor is this host's, and mcp ends with
// its input.
func TestMCP(t *testing.T) {
	cmd, c := ofMCP(t, "--allow-write")
	r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "doctor_run", Arguments: map[string]any{"seconds": 1}})
	if err != nil || r.IsError || !strings.Contains(r.Content[0].(*sdk.TextContent).Text, "fadvise-storm") {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "session_start", Arguments: map[string]any{"key": "alice"}}); err != nil || r.IsError {
		t.Errorf("%+v, %v", r, err)
	}
	if err := c.Close(); err != nil || cmd.ProcessState.ExitCode() != 0 {
		t.Errorf("at the end of its input: %v, %v", err, cmd.ProcessState)
	}
}

// SIGTERM ends mcp, also while its input is open.
func TestMCPEndsBySignal(t *testing.T) {
	cmd := exec.Command("holdfast", "mcp")
	cmd.Env = append(os.Environ(), "HOLDFAST_SOCKET=/nowhere", "GORACE="+raceEnv)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer kill.Stop()
	if _, err := io.WriteString(in, `{"jsonrpc":"2.0","id":1,"method":"ping"}`+"\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil { // it runs, and answers
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v", err)
	}
}

// Over HTTP mcp serves until a signal, with the tokens of the configuration.
func TestMCPOverHTTP(t *testing.T) {
	dir := t.TempDir()
	socket, tokens := filepath.Join(dir, "agent.sock"), filepath.Join(dir, "tokens")
	if err := startAgent(&apitest.Backend{}, socket, t.Cleanup); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(tokens, []byte("ops 0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "holdfast", "mcp", "--listen", "127.0.0.1:0")
	cmd.Env = append(os.Environ(), "HOLDFAST_SOCKET="+socket, tokensEnv+"="+tokens, "GORACE="+raceEnv)
	notes, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 200)
	n, err := notes.Read(line)
	url, ok := strings.CutPrefix(strings.TrimSpace(string(line[:n])), "serving ")
	if err != nil || !ok {
		t.Fatalf("%q, %v", line[:n], err)
	}
	if _, err := sdk.NewClient(&sdk.Implementation{Name: "test"}, nil).Connect(ctx, &sdk.StreamableClientTransport{Endpoint: url}, nil); err == nil {
		t.Error("it answered without a token")
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v", err)
	}
}
