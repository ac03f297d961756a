package process

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/control/config"
)

// Listen opens a TCP listener. key and flag name its address in the configuration, for
// the error of an address in use.
func Listen(c net.ListenConfig, key, flag, addr string) (net.Listener, error) {
	l, err := c.Listen(context.Background(), "tcp", addr)
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, holdfast.WithHint(fmt.Errorf("%s: %s is in use by another program", key, addr),
			fmt.Sprintf("`ss -ltnp` shows the program; set another address with %s or %s", key, flag))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return l, nil
}

// ListenAPI opens the listener of the API. It is nil if the configuration has no address.
func ListenAPI(c config.API) (net.Listener, error) {
	if c.Listen == "" {
		return nil, nil
	}
	secure, err := APITLS(c)
	if err != nil {
		return nil, err
	}
	l, err := Listen(net.ListenConfig{}, "api.listen", "--api", c.Listen)
	if err != nil {
		return nil, err
	}
	return secure(l), nil
}

// APITLS returns a function that adds TLS to the listener of the API if the configuration
// names a certificate.
func APITLS(c config.API) (func(net.Listener) net.Listener, error) {
	if c.CertFile == "" {
		return func(l net.Listener) net.Listener { return l }, nil
	}
	cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("api.cert_file: %w", err)
	}
	conf := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	return func(l net.Listener) net.Listener { return tls.NewListener(l, conf) }, nil
}

// Scheme returns the URL scheme of a listener with or without a certificate.
func Scheme(cert string) string {
	if cert != "" {
		return "https://"
	}
	return "http://"
}
