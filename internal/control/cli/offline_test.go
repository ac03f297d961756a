package cli_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"holdfast/internal/control/cli"
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
	if err != nil || !g.Allows("alice") || !g.Allows("team-7") || g.Allows("bob") || made.Secret != text[:len(made.Secret)] {
		t.Errorf("%+v (signed by %s), %v", g, made.Secret, err)
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
