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

// Config says where the API server is and who we are.
type Config struct {
	Server     string // https://host:port, with or without a path
	CA         []byte // PEM of who vouches for it; empty: the system's
	ServerName string // that its certificate has to have; empty: the host of Server
	Insecure   bool   // whoever answers is believed
	Proxy      string // URL of an HTTP proxy; empty: as the environment says

	Cert, Key []byte // PEM of our certificate
	// Token returns our bearer token; nil: there is none. It is called for each
	// request and keeps what it may keep; fresh asks for another one, because the
	// server did not take the last. It may be called from any goroutine.
	Token func(ctx context.Context, fresh bool) (string, error)
	// AsUser and AsGroups are who to act as.
	AsUser   string
	AsGroups []string

	Namespace string // that our name is in; "default" where nobody says
	Context   string // the name of the kubeconfig's context, for people; may be empty
}

// Where a pod finds its credentials.
const (
	accountDir = "/var/run/secrets/kubernetes.io/serviceaccount"
	hostEnv    = "KUBERNETES_SERVICE_HOST"
	portEnv    = "KUBERNETES_SERVICE_PORT"
)

// ErrNoConfig says that nothing names an API server.
var ErrNoConfig = errors.New("no Kubernetes cluster is configured")

// InCluster is the configuration of a pod, from its service account.
func InCluster() (Config, error) {
	host, port := os.Getenv(hostEnv), os.Getenv(portEnv)
	if host == "" || port == "" {
		return Config{}, holdfast.WithHint(fmt.Errorf("%w: $%s and $%s are not set, so this is no pod", ErrNoConfig, hostEnv, portEnv),
			"--kubeconfig names a file")
	}
	ca, err := os.ReadFile(accountDir + "/ca.crt")
	if err != nil {
		return Config{}, fmt.Errorf("reading who vouches for the API server: %w", err)
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

// tokenFor is how long a token that was read from a file is used. The kubelet writes
// a new one long before the old one ends.
const tokenFor = time.Minute

// tokenFile reads a token that is replaced from time to time.
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

// Limits of a connection. A server that is gone is noticed by pings, so that a watch
// does not wait for it.
const (
	dialLimit    = 10 * time.Second
	pingAfter    = 30 * time.Second
	pingLimit    = 15 * time.Second
	idleConnTime = 90 * time.Second
)

// transport returns what carries requests to the server.
func (c Config) transport(o Options) (*http.Transport, error) {
	conf := &tls.Config{ServerName: c.ServerName, InsecureSkipVerify: c.Insecure, MinVersion: tls.VersionTLS12}
	if len(c.CA) > 0 {
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(c.CA) {
			return nil, errors.New("certificate-authority: there is no certificate in it")
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
			return nil, fmt.Errorf("proxy-url: %q is no URL of a proxy", c.Proxy)
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
