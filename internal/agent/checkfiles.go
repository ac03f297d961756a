package agent

import (
	"crypto/tls"
	"fmt"
	"log/slog"

	"holdfast"
	"holdfast/internal/agent/process"
	"holdfast/internal/control/api"
	"holdfast/internal/control/config"
	"holdfast/internal/platform/keyfile"
	"holdfast/internal/platform/pki"
	"holdfast/internal/sessions/gateway/token"
)

// CheckFiles reads the files that a configuration names: certificates, tokens, the store's
// password, the seccomp profiles of templates. It reports the first file that an agent
// could not use. It changes nothing.
func CheckFiles(c config.Config) error {
	type file struct{ key, path string }
	for _, cert := range []struct {
		file
		private string
	}{{file{"gateway.cert_file", c.Gateway.CertFile}, c.Gateway.KeyFile}, {file{"e2b.cert_file", c.E2B.CertFile}, c.E2B.KeyFile}, {file{"store.cert_file", c.Store.CertFile}, c.Store.KeyFile}} {
		if cert.path == "" {
			continue
		}
		if _, err := tls.LoadX509KeyPair(cert.path, cert.private); err != nil {
			return holdfast.WithHint(fmt.Errorf("%s: %w", cert.key, err), "it must be a PEM certificate chain, with its key in key_file")
		}
	}
	files := []file{{"store.ca_file", c.Store.CAFile}, {"store.password_file", c.Store.PasswordFile}}
	for i, t := range c.Templates {
		files = append(files, file{fmt.Sprintf("templates[%d] (%s): seccomp", i, t.Name), t.Seccomp})
	}
	for _, f := range files {
		if f.path == "" {
			continue
		}
		if _, err := keyfile.Read(f.path); err != nil {
			return fmt.Errorf("%s: %w", f.key, err)
		}
	}
	if c.Gateway.TokensFile != "" {
		if _, err := token.ReadSecrets(c.Gateway.TokensFile); err != nil {
			return fmt.Errorf("gateway.tokens_file: %w", err)
		}
	}
	log := slog.New(slog.DiscardHandler)
	if _, err := process.APITLS(c.API, log); err != nil {
		return err
	}
	if _, err := api.OpenTokens(api.TokenFiles{Admin: c.E2B.APIKeysFile}, log); err != nil {
		return fmt.Errorf("e2b.api_keys_file: %w", err)
	}
	if _, err := api.OpenTokens(api.TokenFiles{Admin: c.API.TokenFile, Read: c.API.ReadTokenFile}, log); err != nil || c.Fleet.Listen == "" {
		return err
	}
	_, err := identity(c, log)
	return err
}

// identity reads a node's certificate.
func identity(c config.Config, log *slog.Logger) (*pki.Identity, error) {
	id, err := pki.Load(pki.FilesIn(c.Fleet.Certificates), log)
	if err != nil {
		return nil, fmt.Errorf("fleet.certificates: %w", err)
	}
	return id, nil
}
