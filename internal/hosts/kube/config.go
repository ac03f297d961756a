package kube

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"holdfast"
)

// Config has the API server's address and the client's credentials.
type Config struct {
	Server     string // https://host:port, with or without a path
	CA         []byte // PEM of the certificate authority; empty: the system's
	ServerName string // expected in its certificate; empty: the host of Server
	Insecure   bool   // the server's certificate is not verified
	Proxy      string // URL of an HTTP proxy; empty: from the environment

	Cert, Key []byte // PEM of the client certificate
	// Token returns the bearer token; nil: the client has none. It is called for each
	// request and may cache the token; with fresh set it gets a new token,
	// because the server rejected the last one. It may be called from any
	// goroutine.
	Token func(ctx context.Context, fresh bool) (string, error)
	// AsUser and AsGroups are the user and groups to impersonate.
	AsUser   string
	AsGroups []string

	Namespace string // of the client's own name; default: "default"
	Context   string // the name of the kubeconfig's context, for display; may be empty
}

// Files and environment variables with a pod's credentials.
const (
	accountDir = "/var/run/secrets/kubernetes.io/serviceaccount"
	hostEnv    = "KUBERNETES_SERVICE_HOST"
	portEnv    = "KUBERNETES_SERVICE_PORT"
)

// ErrNoConfig means that no configuration names an API server.
var ErrNoConfig = errors.New("no Kubernetes cluster is configured")

// InCluster returns the configuration of a pod, from its service account.
func InCluster() (Config, error) {
	host, port := os.Getenv(hostEnv), os.Getenv(portEnv)
	if host == "" || port == "" {
		return Config{}, holdfast.WithHint(fmt.Errorf("%w: $%s and $%s are not set, so this process does not run in a pod", ErrNoConfig, hostEnv, portEnv),
			"name a file with --kubeconfig")
	}
	ca, err := os.ReadFile(accountDir + "/ca.crt")
	if err != nil {
		return Config{}, fmt.Errorf("reading the API server's certificate authority: %w", err)
	}
	namespace, err := os.ReadFile(accountDir + "/namespace")
	if err != nil {
		return Config{}, fmt.Errorf("reading the pod's namespace: %w", err)
	}
	return Config{
		Server: "https://" + net.JoinHostPort(host, port), CA: ca,
		Token: tokenFile(accountDir + "/token"), Namespace: strings.TrimSpace(string(namespace)),
	}, nil
}

// tokenFor is how long a token read from a file is cached. The kubelet writes a
// new one long before the old one expires.
const tokenFor = time.Minute

// tokenFile returns a function that reads a token from a file, which is replaced
// from time to time.
func tokenFile(path string) func(context.Context, bool) (string, error) {
	var mu sync.Mutex
	var token string
	var read time.Time
	return func(_ context.Context, fresh bool) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		if !fresh && token != "" && time.Since(read) < tokenFor {
			return token, nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("reading the token: %w", err)
		}
		token, read = strings.TrimSpace(string(b)), time.Now()
		return token, nil
	}
}

// Limits of a connection. Pings detect a dead server, so that a watch does not
// wait for it.
const (
	dialLimit    = 10 * time.Second
	pingAfter    = 30 * time.Second
	pingLimit    = 15 * time.Second
	idleConnTime = 90 * time.Second
)

// transport returns the HTTP transport to the server.
func (c Config) transport(o Options) (*http.Transport, error) {
	conf := &tls.Config{ServerName: c.ServerName, InsecureSkipVerify: c.Insecure, MinVersion: tls.VersionTLS12}
	if len(c.CA) > 0 {
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(c.CA) {
			return nil, errors.New("certificate-authority: it has no certificate")
		}
	}
	if len(c.Cert) > 0 || len(c.Key) > 0 {
		pair, err := tls.X509KeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, fmt.Errorf("client certificate: %w", err)
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	proxy := http.ProxyFromEnvironment
	if c.Proxy != "" {
		u, err := url.Parse(c.Proxy)
		if err != nil || u.Host == "" {
			return nil, fmt.Errorf("proxy-url: %q is not the URL of a proxy", c.Proxy)
		}
		proxy = http.ProxyURL(u)
	}
	dial := o.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialLimit}).DialContext
	}
	return &http.Transport{
		Proxy: proxy, DialContext: dial, TLSClientConfig: conf, TLSHandshakeTimeout: dialLimit,
		ForceAttemptHTTP2: true, IdleConnTimeout: cmp.Or(o.Idle, idleConnTime), MaxIdleConnsPerHost: 4,
		HTTP2: &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingLimit},
	}, nil
}
