package process

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/control/config"
	"holdfast/internal/platform/keyfile"
)

// Listen opens a TCP listener. key and flag name its address in the configuration, for
// the error of an address in use; flag may be "".
func Listen(c net.ListenConfig, key, flag, addr string) (net.Listener, error) {
	l, err := c.Listen(context.Background(), "tcp", addr)
	if errors.Is(err, unix.EADDRINUSE) {
		if flag != "" {
			flag = " or " + flag
		}
		return nil, holdfast.WithHint(fmt.Errorf("%s: %s is in use by another program", key, addr),
			fmt.Sprintf("`ss -ltnp` shows the program; set another address with %s%s", key, flag))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return l, nil
}

// SameSocket reports whether at is the address of the unix socket at path.
func SameSocket(at net.Addr, path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode().Type() == os.ModeSocket && at.Network() == "unix" && at.String() == path
}

// ListenSocket listens on a unix socket that only root can connect to. It replaces the
// socket of an agent that has exited, on which no process listens.
func ListenSocket(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("api.socket: %w", err)
	}
	if info, err := os.Lstat(path); err == nil {
		if info.Mode().Type() != os.ModeSocket {
			return nil, fmt.Errorf("api.socket: %s exists and is no socket", path)
		}
		// Only ECONNREFUSED means that no process listens: an agent that is too busy
		// to accept is alive.
		conn, err := net.Dial("unix", path) // does not wait: EAGAIN if the backlog is full
		if err == nil {
			conn.Close()
		}
		if !errors.Is(err, unix.ECONNREFUSED) {
			return nil, holdfast.WithHint(fmt.Errorf("api.socket: another agent listens on %s", path), "end it with: holdfast agent stop --keep; or set another path with api.socket or --socket")
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("api.socket: %w", err)
		}
	}
	// The mask makes the socket accessible to root only from its creation on. It
	// applies to the whole process, which runs no other goroutine that creates files
	// yet.
	mask := unix.Umask(0o177)
	l, err := net.Listen("unix", path)
	unix.Umask(mask)
	if err != nil {
		return nil, fmt.Errorf("api.socket: %w", err)
	}
	return l, nil
}

// ListenAPI opens the listener of the API. It is nil if the configuration has no address.
func ListenAPI(c config.API, log *slog.Logger) (net.Listener, error) {
	if c.Listen == "" {
		return nil, nil
	}
	secure, err := APITLS(c, log)
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
func APITLS(c config.API, log *slog.Logger) (func(net.Listener) net.Listener, error) {
	if c.CertFile == "" {
		return func(l net.Listener) net.Listener { return l }, nil
	}
	conf, err := keyfile.ServerTLS(log, c.CertFile, c.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("api.cert_file: %w", err)
	}
	conf.NextProtos = []string{"http/1.1"}
	return func(l net.Listener) net.Listener { return tls.NewListener(l, conf) }, nil
}

// Scheme returns the URL scheme of a listener with or without a certificate.
func Scheme(cert string) string {
	if cert != "" {
		return "https://"
	}
	return "http://"
}
