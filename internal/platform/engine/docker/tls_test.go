package docker_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/engine/docker"
	"holdfast/test/lab/labtest"
)

// TestTLS uses the engine over TCP with client certificates, for plain calls and for
// streams, and gets an error for wrong certificates.
func TestTLS(t *testing.T) {
	_, private := open(t)
	dir := newAuthority(t)
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	ca, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil || !trusted.AppendCertsFromPEM(ca) {
		t.Fatal("no authority", err)
	}
	// To a client this looks like an engine with --tlsverify: bytes are forwarded
	// after the handshake.
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: trusted, ClientAuth: tls.RequireAndVerifyClientCert,
	})
	if err != nil {
		t.Fatal(err)
	}
	forward(t, ln, private.Socket())
	host := "tcp://" + ln.Addr().String()

	config := docker.Config{
		Host:   host,
		CAFile: filepath.Join(dir, "ca.pem"), CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem"),
	}
	e := openAt(t, config)
	if info, err := e.Info(t.Context()); err != nil || info.DataRoot != private.DataRoot() || info.Socket != "" {
		t.Errorf("%+v, %v", info, err)
	}
	id, err := e.Create(t.Context(), engine.Spec{Image: labtest.Busybox})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Remove(t.Context(), id); err != nil {
			t.Error(err)
		}
	}()
	if err := e.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	code, err := e.Exec(t.Context(), id, engine.Exec{Command: []string{"cat"}, Stdin: strings.NewReader("over TLS"), Stdout: &out})
	if err != nil || code != 0 || out.String() != "over TLS" {
		t.Errorf("exit code %d, output %q, %v", code, out.String(), err)
	}

	other := newAuthority(t)
	for what, c := range map[string]docker.Config{
		"of another":       {Host: host, CAFile: filepath.Join(other, "ca.pem"), CertFile: config.CertFile, KeyFile: config.KeyFile},
		"not the client's": {Host: host, CAFile: config.CAFile, CertFile: filepath.Join(other, "cert.pem"), KeyFile: filepath.Join(other, "key.pem")},
	} {
		if _, err := docker.Open(t.Context(), c); !errors.Is(err, holdfast.ErrEngine) || !strings.Contains(holdfast.HintOf(err), "TLS") {
			t.Errorf("%s: %v, hint %q", what, err, holdfast.HintOf(err))
		}
	}

	if _, err := docker.Open(t.Context(), docker.Config{Host: host}); !errors.Is(err, holdfast.ErrEngine) {
		t.Errorf("without TLS: %v", err)
	}

	t.Setenv("DOCKER_HOST", host)
	t.Setenv("DOCKER_CERT_PATH", dir)
	t.Setenv("DOCKER_TLS_VERIFY", "1")
	if _, err := openAt(t, docker.Config{}).Info(t.Context()); err != nil {
		t.Errorf("by the environment: %v", err)
	}
}

// TestNotAnEngine connects to a web server.
func TestNotAnEngine(t *testing.T) {
	web := httptest.NewUnstartedServer(nil)
	web.Config.ErrorLog = log.New(io.Discard, "", 0)
	web.Start()
	defer web.Close()
	e, err := docker.Open(t.Context(), docker.Config{Host: strings.Replace(web.URL, "http", "tcp", 1)})
	if err == nil {
		_, err = e.Info(t.Context())
		defer e.Close()
	}
	if err == nil {
		t.Error("no error")
	}
}

// forward forwards connections to a unix socket until the test ends.
func forward(t *testing.T, ln net.Listener, socket string) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		for {
			from, err := ln.Accept()
			if err != nil {
				return
			}
			all.Go(func() { join(ctx, from, socket) })
		}
	})
	t.Cleanup(func() {
		cancel()
		if err := ln.Close(); err != nil {
			t.Error(err)
		}
		all.Wait()
	})
}

// join copies both directions between two connections. Errors show at their ends.
func join(ctx context.Context, from net.Conn, socket string) {
	defer from.Close()
	var d net.Dialer
	to, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return
	}
	defer to.Close()
	stop := context.AfterFunc(ctx, func() { _, _ = from.Close(), to.Close() })
	defer stop()
	type halfCloser interface{ CloseWrite() error }
	var both sync.WaitGroup
	both.Go(func() {
		if _, err := io.Copy(to, from); err != nil {
			to.Close()
		}
		_ = to.(halfCloser).CloseWrite()
	})
	both.Go(func() {
		_, _ = io.Copy(from, to)
		_ = from.(halfCloser).CloseWrite()
	})
	both.Wait()
}

// newAuthority makes ca.pem, and cert.pem with key.pem that it has signed for
// both ends on loopback, in a directory.
func newAuthority(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name, kind string, der []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	newKey := func() *ecdsa.PrivateKey {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "leaf"},
		NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	caKey, key := newKey(), newKey()
	der, err := x509.CreateCertificate(rand.Reader, authority, authority, caKey.Public(), caKey)
	if err != nil {
		t.Fatal(err)
	}
	write("ca.pem", "CERTIFICATE", der)
	if der, err = x509.CreateCertificate(rand.Reader, leaf, authority, key.Public(), caKey); err != nil {
		t.Fatal(err)
	}
	write("cert.pem", "CERTIFICATE", der)
	if der, err = x509.MarshalPKCS8PrivateKey(key); err != nil {
		t.Fatal(err)
	}
	write("key.pem", "PRIVATE KEY", der)
	return dir
}
