package agent

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"holdfast/test/lab/registry"
)

// TestTokenRegistry: a registry sends its clients to a token server, as most do. The login is a
// password or an identity token. A wrong or expired one is refused, the error names the registry,
// and the next pull uses the one that replaces it.
func TestTokenRegistry(t *testing.T) {
	docker := filepath.Join(t.TempDir(), "docker")
	t.Setenv("DOCKER_CONFIG", docker)
	const first, second, identity, renewed = "the-first-password", "the-second-password", "the-identity-token", "the-renewed-token"
	tokens, err := registry.StartTokens("reader", first)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tokens.Close)
	reg, err := registry.Start(t.Context(), registry.Options{Tokens: tokens})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := reg.Stop(); err != nil {
			t.Error(err)
		}
	})
	writer := registry.Options{User: "reader", Password: first}
	if _, err := reg.Push(t.Context(), serverImage(t), "web:1", writer); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		small, err := registry.Image(runtime.GOARCH, registry.Layer{Seed: uint64(9000 + i), Size: 1000})
		if err == nil {
			_, err = reg.Push(t.Context(), small, fmt.Sprintf("small:%d", i), writer)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	saved := func(entry string) {
		t.Helper()
		text := fmt.Sprintf(`{"auths": {%q: {%s}}}`, reg.Host(), entry)
		if err := errors.Join(os.MkdirAll(docker, 0o700), os.WriteFile(filepath.Join(docker, "config.json"), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	password := func(p string) string {
		return fmt.Sprintf(`"auth": %q`, base64.StdEncoding.EncodeToString([]byte("reader:"+p)))
	}
	token := func(p string) string { return fmt.Sprintf(`%s, "identitytoken": %q`, password(""), p) }

	h := newHost(t, fmt.Sprintf("templates:\n  - {name: web, image: %q, port: 8080, ready: {http: /healthz, timeout: 30s}}\n", reg.Host()+"/web:1"))
	t.Setenv("HOLDFAST_CONFIG", h.configFile()) // of pull
	h.start()
	var said strings.Builder // by the commands
	refused := func(what string, args ...string) {
		t.Helper()
		r := h.cli(args...)
		said.WriteString(r.out + r.err)
		if r.code == 0 || !strings.Contains(r.err, reg.Host()) || strings.Count(r.err, "error: ") != 1 || strings.Count(r.err, "hint: ") != 1 {
			t.Errorf("%s: exit code %d: %s", what, r.code, r.err)
		}
	}
	small := func(i int) string { return fmt.Sprintf("%s/small:%d", reg.Host(), i) }
	refused("no login", "session", "start", "first", "--template", "web")
	saved(token("not-" + identity))
	refused("a wrong identity token", "session", "start", "second", "--template", "web")
	tokens.Set(first, identity)
	saved(token(identity))
	h.must("session", "start", "third", "--template", "web")
	if tokens.Granted("refresh_token") == 0 {
		t.Error("the identity token was not used")
	}

	tokens.Set(second, renewed) // the registry's operator replaces both
	refused("an expired identity token", "pull", small(0))
	saved(token(renewed))
	said.WriteString(h.must("pull", small(0)))
	saved(password(first))
	refused("an expired password", "pull", small(1))
	saved(password(second))
	said.WriteString(h.must("pull", small(1)))
	saved(`"auth": "not base64"`)
	refused("a file that cannot be read", "pull", small(2))

	h.signal(syscall.SIGTERM)
	h.wait()
	said.WriteString(h.out.String() + h.errs.String())
	for _, secret := range []string{first, second, identity, renewed, base64.StdEncoding.EncodeToString([]byte("reader:" + first)), "not base64"} {
		if strings.Contains(said.String(), secret) {
			t.Errorf("an output contains %q:\n%s", secret, &said)
		}
	}
}
