package keyfile

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"path/filepath"
	"testing"
	"time"
)

// pair writes a new certificate with the serial number, and its key.
func pair(t *testing.T, cert, key string, serial int64) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	as := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, as, as, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	write(t, cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	write(t, key, string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret})))
}

// A listener presents a renewed certificate to new connections. While its key is missing, it
// presents the former one.
func TestServerTLSOfRenewedFiles(t *testing.T) {
	dir := t.TempDir()
	cert, key, other := filepath.Join(dir, "cert"), filepath.Join(dir, "key"), filepath.Join(dir, "other")
	pair(t, cert, key, 1)
	conf, err := ServerTLS(slog.New(slog.DiscardHandler), cert, key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", conf)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.(*tls.Conn).Handshake() // the client looks at it
			c.Close()
		}
	}()
	serial := func() int64 {
		t.Helper()
		c, err := tls.DialWithDialer(&net.Dialer{Timeout: 10 * time.Second}, "tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	if n := serial(); n != 1 {
		t.Errorf("serial number %d at first", n)
	}
	pair(t, cert, other, 2)
	time.Sleep(Every + Every/10)
	if n := serial(); n != 1 {
		t.Errorf("serial number %d without its key", n)
	}
	pair(t, cert, key, 3)
	time.Sleep(Every + Every/10)
	if n := serial(); n != 3 {
		t.Errorf("serial number %d after the renewal", n)
	}
	if _, err := ServerTLS(slog.New(slog.DiscardHandler), cert, other); err == nil {
		t.Error("a key of another certificate is accepted")
	}
}
