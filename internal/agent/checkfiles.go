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
	for _, check := range []func(config.Config) error{checkGateway, checkAPI, checkStore, checkIdentity, checkTemplates} {
		if err := check(c); err != nil {
			return err
		}
	}
	return nil
}

func checkGateway(c config.Config) error {
	if err := checkPair("gateway.cert_file", c.Gateway.CertFile, c.Gateway.KeyFile); err != nil || c.Gateway.TokensFile == "" {
		return err
	}
	if _, err := token.ReadSecrets(c.Gateway.TokensFile); err != nil {
		return fmt.Errorf("gateway.tokens_file: %w", err)
	}
	return nil
}

func checkAPI(c config.Config) error {
	if _, err := process.APITLS(c.API); err != nil {
		return err
	}
	_, err := api.OpenTokens(api.TokenFiles{Admin: c.API.TokenFile, Read: c.API.ReadTokenFile}, slog.New(slog.DiscardHandler))
	return err
}

func checkStore(c config.Config) error {
	if err := checkPair("store.cert_file", c.Store.CertFile, c.Store.KeyFile); err != nil {
		return err
	}
	for _, f := range []struct{ key, path string }{{"store.ca_file", c.Store.CAFile}, {"store.password_file", c.Store.PasswordFile}} {
		if f.path == "" {
			continue
		}
		if _, err := keyfile.Read(f.path); err != nil {
			return fmt.Errorf("%s: %w", f.key, err)
		}
	}
	return nil
}

func checkIdentity(c config.Config) error {
	if c.Fleet.Listen == "" {
		return nil
	}
	_, err := identity(c, slog.New(slog.DiscardHandler))
	return err
}

func checkTemplates(c config.Config) error {
	for i, t := range c.Templates {
		if t.Seccomp == "" {
			continue
		}
		if _, err := keyfile.Read(t.Seccomp); err != nil {
			return fmt.Errorf("templates[%d] (%s): seccomp: %w", i, t.Name, err)
		}
	}
	return nil
}

// checkPair reads a certificate and its key, if both are named.
func checkPair(key, cert, private string) error {
	if cert == "" {
		return nil
	}
	if _, err := tls.LoadX509KeyPair(cert, private); err != nil {
		return holdfast.WithHint(fmt.Errorf("%s: %w", key, err), "it must be a PEM certificate chain, with its key in key_file")
	}
	return nil
}

// identity reads a node's certificate.
func identity(c config.Config, log *slog.Logger) (*pki.Identity, error) {
	id, err := pki.Load(pki.FilesIn(c.Fleet.Certificates), log)
	if err != nil {
		return nil, fmt.Errorf("fleet.certificates: %w", err)
	}
	return id, nil
}
