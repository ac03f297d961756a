package containerd_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"holdfast/internal/platform/engine"
	"holdfast/test/lab/labtest"
	"holdfast/test/lab/registry"
)

// The mirror of a registry needs a login of its own, which is asked for at each pull. The login of
// the registry does not go to the mirror.
func TestMirrorWithALogin(t *testing.T) {
	_, daemon := labtest.Containerd(t)
	mine := engine.Login{Username: "reader", Password: "the-password-of-the-mirror"}
	reg, err := registry.Start(t.Context(), registry.Options{User: mine.Username, Password: mine.Password})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := reg.Stop(); err != nil {
			t.Error(err)
		}
	})
	image, err := registry.Image(runtime.GOARCH, registry.Layer{Seed: 77, Size: 1000})
	if err == nil {
		_, err = reg.Push(t.Context(), image, "app:1", registry.Options{User: mine.Username, Password: mine.Password})
	}
	if err != nil {
		t.Fatal(err)
	}
	const upstream = "registry.example.org"
	c := labtest.ContainerdConfig(daemon)
	c.Certs = t.TempDir()
	settings := fmt.Sprintf("server = \"https://%s\"\n[host.\"http://%s\"]\n  capabilities = [\"pull\", \"resolve\"]\n", upstream, reg.Host())
	dir := filepath.Join(c.Certs, upstream)
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(settings), 0o600)); err != nil {
		t.Fatal(err)
	}
	e := labtest.OpenContainerd(t, c)
	pull := func(o engine.PullOptions) error {
		for _, err := range e.Pull(t.Context(), upstream+"/app:1", o) {
			if err != nil {
				return err
			}
		}
		return nil
	}
	at := func(l engine.Login) func(context.Context, string) (engine.Login, error) {
		return func(_ context.Context, host string) (engine.Login, error) {
			if host != reg.Host() && host != upstream {
				t.Errorf("asked for the login of %q", host)
			}
			if host != reg.Host() {
				return engine.Login{}, nil
			}
			return l, nil
		}
	}
	theirs := engine.Login{Username: mine.Username, Password: mine.Password, Server: upstream}
	wrong := engine.Login{Username: mine.Username, Password: "another-password"}
	for what, c := range map[string]struct {
		o    engine.PullOptions
		says string
	}{
		"no login":                 {engine.PullOptions{}, upstream},
		"the registry's own login": {engine.PullOptions{Login: theirs}, upstream},
		"a wrong login":            {engine.PullOptions{LoginAt: at(wrong)}, reg.Host()},
	} {
		said := fmt.Sprint(pull(c.o))
		if !strings.Contains(said, c.says) || strings.Contains(said, mine.Password) || strings.Contains(said, wrong.Password) {
			t.Errorf("%s: %s", what, said)
		}
	}
	if err := pull(engine.PullOptions{Login: theirs, LoginAt: at(mine)}); err != nil {
		t.Error(err)
	}
	if _, err := e.ImageID(t.Context(), upstream+"/app:1"); err != nil {
		t.Error(err)
	}
}
