package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/control/config"
	"holdfast/internal/platform/pki"
)

func TestFilesOfAConfiguration(t *testing.T) {
	dir := t.TempDir()
	ca, node := filepath.Join(dir, "ca"), filepath.Join(dir, "node")
	if _, err := pki.InitCA(ca, time.Now()); err != nil {
		t.Fatal(err)
	}
	join := pki.Join{CA: ca, Node: "n1", Out: node, Now: time.Now(), Validity: time.Hour}
	if _, err := join.Do(); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cert, key := filepath.Join(node, "node.pem"), filepath.Join(node, "node.key")
	tokens := write("tokens", "ops 0123456789abcdef\n", 0o600)
	secrets := write("secrets", "k1 "+strings.Repeat("A", 43)+"=\n", 0o600)
	loose := write("loose", "ops 0123456789abcdef\n", 0o644)
	for _, c := range []struct {
		name, want string // "": no file is wrong
		change     func(*config.Config)
	}{
		{"none", "", func(*config.Config) {}},
		{"all good", "", func(c *config.Config) {
			c.Gateway.CertFile, c.Gateway.KeyFile, c.Gateway.TokensFile = cert, key, secrets
			c.API.CertFile, c.API.KeyFile, c.API.TokenFile = cert, key, tokens
			c.E2B.CertFile, c.E2B.KeyFile, c.E2B.APIKeysFile = cert, key, tokens
			c.Store.CAFile, c.Store.PasswordFile = cert, tokens
			c.Fleet.Listen, c.Fleet.Certificates = "10.0.0.7:7072", node
			c.Templates = []config.Template{{Seccomp: tokens}}
		}},
		{"gateway's certificate", "gateway.cert_file: open /no", func(c *config.Config) { c.Gateway.CertFile, c.Gateway.KeyFile = "/no", key }},
		{"gateway's tokens", "gateway.tokens_file: ", func(c *config.Config) { c.Gateway.TokensFile = tokens }},
		{"key of the API", "api.cert_file: ", func(c *config.Config) { c.API.CertFile, c.API.KeyFile = cert, cert }},
		{"tokens for all to read", "lets other users read it", func(c *config.Config) { c.API.TokenFile = loose }},
		{"keys of SDKs", "e2b.api_keys_file: ", func(c *config.Config) { c.E2B.APIKeysFile = loose }},
		{"store's authority", "store.ca_file: open /no", func(c *config.Config) { c.Store.CAFile = "/no" }},
		{"store's certificate", "store.cert_file: ", func(c *config.Config) { c.Store.CertFile, c.Store.KeyFile = cert, "/no" }},
		{"store's password", "store.password_file: open /no", func(c *config.Config) { c.Store.PasswordFile = "/no" }},
		{"node's certificate", "fleet.certificates: ", func(c *config.Config) { c.Fleet.Listen, c.Fleet.Certificates = ":1", ca }},
		{"profile", "templates[0] (web): seccomp: open /no", func(c *config.Config) { c.Templates = []config.Template{{Name: "web", Seccomp: "/no"}} }},
	} {
		conf := config.Default()
		c.change(&conf)
		err := CheckFiles(conf)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if c.name == "tokens for all to read" && holdfast.HintOf(err) == "" {
			t.Errorf("%s: no hint", c.name)
		}
	}
}
