package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// Config is how to reach an etcd cluster.
type Config struct {
	Endpoints []string // host:port or URL each
	TLS       TLSConfig
	Username  string
	// PasswordFile holds the password; a newline at its end does not count.
	PasswordFile string
	// DialTimeout bounds connecting; 0 is 5 s.
	DialTimeout time.Duration
	// Timeout bounds each call; 0 is 2 s. A call to an etcd that answers late may take up to three times as
	// long.
	Timeout time.Duration
	// Log gets the client's warnings and errors; nil is none.
	Log *slog.Logger
}

// TLSConfig names PEM files. They are read again for new connections, so that
// certificates can be renewed under a running agent. All empty is no TLS unless
// an endpoint is an https:// URL.
type TLSConfig struct {
	CAFile   string // authorities for etcd's certificate; empty is the system's roots
	CertFile string // the client's, for etcd's --client-cert-auth; with KeyFile
	KeyFile  string
}

const (
	defaultDialTimeout = 5 * time.Second
	defaultTimeout     = 2 * time.Second
	keepAliveTime      = 3 * time.Second // the interval of keep-alive pings on an idle connection
	keepAliveTimeout   = 2 * time.Second
)

// Dial connects to a cluster and makes one call, so that a wrong address or password
// is an error of Dial.
func Dial(ctx context.Context, c Config) (*Store, error) {
	conf, err := c.client(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	where := strings.Join(c.Endpoints, ", ")
	s := &Store{
		log:     cmp.Or(c.Log, slog.New(slog.DiscardHandler)),
		timeout: conf.DialTimeout, // the first call makes the connection
		where:   "check that etcd runs and answers at " + where,
	}
	_ = s.calls.Open(context.Background()) // it fails only for an open group
	s.client, err = clientv3.New(conf)
	if err != nil {
		err = s.explain(ctx, err)
	} else if err = s.open(ctx); err == nil {
		s.timeout = cmp.Or(c.Timeout, defaultTimeout)
		return s, nil
	} else {
		s.client.Close() // the first error is returned
	}
	if why := whyNot(ctx, c.Endpoints[0], conf.TLS); why != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("connect to etcd at %s: %w: %w", where, err, why)
	}
	return nil, fmt.Errorf("connect to etcd at %s: %w", where, err)
}

// whyNot connects to one endpoint to find an error that the client, which keeps
// retrying, does not report: the connection is refused, or a certificate is not
// accepted. It returns nil if the connection works.
func whyNot(ctx context.Context, endpoint string, conf *tls.Config) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, addr, ok := strings.Cut(endpoint, "://")
	if !ok {
		addr = endpoint
	}
	if conf == nil {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err == nil {
			conn.Close()
		}
		return err
	}
	conn, err := (&tls.Dialer{Config: conf}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	// With TLS 1.3 the server verifies the client's certificate after the handshake
	// (RFC 8446, 4.4.2), so a refusal arrives with the first read. An etcd that
	// accepts the certificate sends nothing before a request.
	if err := conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
		return err
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

func (c Config) client(ctx context.Context) (clientv3.Config, error) {
	if len(c.Endpoints) == 0 {
		return clientv3.Config{}, errors.New("no endpoints are given")
	}
	tlsConfig, err := c.TLS.load(c.Endpoints)
	if err != nil {
		return clientv3.Config{}, err
	}
	conf := clientv3.Config{
		Context:              context.WithoutCancel(ctx), // the connection outlives the dialling
		Endpoints:            c.Endpoints,
		TLS:                  tlsConfig,
		Username:             c.Username,
		DialTimeout:          cmp.Or(c.DialTimeout, defaultDialTimeout),
		DialKeepAliveTime:    keepAliveTime,
		DialKeepAliveTimeout: keepAliveTimeout,
		Logger:               zap.New(bridge{log: cmp.Or(c.Log, slog.New(slog.DiscardHandler))}),
	}
	if c.PasswordFile != "" {
		b, err := os.ReadFile(c.PasswordFile)
		if err != nil {
			return clientv3.Config{}, fmt.Errorf("read the password of user %q: %w", c.Username, err)
		}
		conf.Password = strings.TrimRight(string(b), "\r\n")
	}
	return conf, nil
}

func (t TLSConfig) load(endpoints []string) (*tls.Config, error) {
	https := false
	for _, e := range endpoints {
		https = https || strings.HasPrefix(e, "https://")
	}
	if t == (TLSConfig{}) && !https {
		return nil, nil
	}
	if (t.CertFile == "") != (t.KeyFile == "") {
		return nil, errors.New("a TLS certificate needs its key, and a key its certificate")
	}
	conf, err := transport.TLSInfo{TrustedCAFile: t.CAFile, CertFile: t.CertFile, KeyFile: t.KeyFile}.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("load the TLS files: %w", err)
	}
	return conf, nil
}
