package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/control/cli"
	"holdfast/internal/control/config"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/pki"
	"holdfast/internal/sessions/gateway/token"
)

// offline runs a command in this process, with the clock of this host.
func offline(t *testing.T, args ...string) string {
	t.Helper()
	deps := testDeps()
	deps.Now = time.Now
	var out, errs bytes.Buffer
	if code := cli.Main(t.Context(), args, nil, &out, &errs, deps); code != 0 {
		t.Fatalf("%q: exit code %d: %s", args, code, errs.String())
	}
	return out.String()
}

// A gateway accepts the token that the command prints.
func TestCreatedTokenIsAccepted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	text := offline(t, "token", "new-secret") + offline(t, "token", "new-secret")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var made struct{ Token, Secret string }
	if err := json.Unmarshal([]byte(offline(t, "token", "create", "--secrets", file, "--key", "alice", "--prefix", "team-", "--json")), &made); err != nil {
		t.Fatal(err)
	}
	v, err := token.OpenVerifier(file, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	g, err := v.Verify(made.Token)
	if err != nil || !g.Allows("alice", 0) || !g.Allows("team-7", 0) || g.Allows("bob", 0) || made.Secret != text[:len(made.Secret)] {
		t.Errorf("%+v (signed by %s), %v", g, made.Secret, err)
	}
	for flag, want := range map[string]string{"--port=3000": "false true", "--all-ports": "true true"} {
		text := strings.TrimSpace(offline(t, "token", "create", "--secrets", file, "--key", "alice", flag))
		g, err := v.Verify(text)
		if got := fmt.Sprint(g.Allows("alice", 0), " ", g.Allows("alice", 3000)); err != nil || got != want {
			t.Errorf("%s allows %s, %v", flag, got, err)
		}
	}
}

// A node accepts the files of the two commands as its identity.
func TestJoinedNodeHasItsIdentity(t *testing.T) {
	dir := t.TempDir()
	ca, out := filepath.Join(dir, "ca"), filepath.Join(dir, "n1")
	offline(t, "node", "init-ca", "--out", ca)
	offline(t, "node", "join", "--ca", ca, "--node", "n1", "--out", out)
	id, err := pki.Load(pki.FilesIn(out), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if left := time.Until(id.Expires()); id.Node() != "n1" || left < pki.DefaultValidity-time.Hour || left > pki.DefaultValidity {
		t.Errorf("%s, valid for %v", id.Node(), left)
	}
}

// --try-engine prints the tried runtimes, and goes with an agent's configuration only.
func TestConfigCheckTriesTheEngine(t *testing.T) {
	d := testDeps()
	d.CheckFiles = func(config.Config) error { return nil }
	d.TryEngine = func(context.Context, config.Config) (cli.TriedEngine, error) {
		return cli.TriedEngine{Name: "docker", Version: "29.0.0", Runtimes: []string{"default", "runsc"}, EngineNetworks: "it remaps"}, nil
	}
	file := filepath.Join(t.TempDir(), "holdfast.yaml")
	if err := os.WriteFile(file, []byte("templates:\n  - {name: web, image: i, port: 80}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	check := func(args ...string) (int, string) {
		var out strings.Builder
		code := cli.Main(t.Context(), append([]string{"config", "check", file, "--try-engine"}, args...), strings.NewReader(""), &out, &out, d)
		return code, out.String()
	}
	if code, out := check(); code != 0 || !strings.Contains(out, "docker 29.0.0 runs containers; runtimes tried: default, runsc\nsessions get networks of the engine's: it remaps\n") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	if code, out := check("--json"); code != 0 || !strings.Contains(out, `"runsc"`) {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	if code, out := check("--for", "gc"); code != cli.ExitUsage || !strings.Contains(out, "--for agent") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	d.TryEngine = func(context.Context, config.Config) (cli.TriedEngine, error) {
		return cli.TriedEngine{}, holdfast.WithHint(engine.ErrNoStart, "install it")
	}
	if code, out := check(); code != 1 || !strings.HasSuffix(out, "\nhint: install it\n") || strings.Count(out, "error: ") != 1 {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}
