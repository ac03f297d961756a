package cli

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"holdfast"
	"holdfast/internal/control/api/client"
)

// Environment variables for an agent on another host.
const (
	urlEnv   = "HOLDFAST_URL"   // https://host:port
	tokenEnv = "HOLDFAST_TOKEN" // its bearer token
	caEnv    = "HOLDFAST_CA"    // file with the PEM certificates of its authority; default: those of the system
)

// remoteURL returns the address of a remote agent, "" if the agent is behind its
// socket. --socket overrides the environment.
func (a *app) remoteURL() string {
	if a.socket != "" {
		return ""
	}
	return os.Getenv(urlEnv)
}

func remoteAgent(url string) (*client.Client, error) {
	o := client.Options{URL: url, Token: os.Getenv(tokenEnv)}
	if file := os.Getenv(caEnv); file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("reading the certificates of $%s: %w", caEnv, err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, holdfast.WithHint(fmt.Errorf("there is no certificate in %s", file), "$"+caEnv+" names a PEM file")
		}
		o.TLS = &tls.Config{RootCAs: pool}
	}
	return client.New(o)
}
