package etcd

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

const (
	user     = "root"
	password = "correct horse"
)

// cluster is an external etcd, over TCP with TLS, client certificates and passwords.
type cluster struct {
	endpoint string
	ca       string
	cert     string
	key      string
	password string // a file
}

func (c cluster) config() Config {
	return Config{
		Endpoints:    []string{c.endpoint},
		TLS:          TLSConfig{CAFile: c.ca, CertFile: c.cert, KeyFile: c.key},
		Username:     user,
		PasswordFile: c.password,
		DialTimeout:  5 * time.Second,
		Timeout:      time.Second,
	}
}

func startCluster(t *testing.T) cluster {
	t.Helper()
	dir := t.TempDir()
	c := cluster{
		ca: filepath.Join(dir, "ca.pem"), cert: filepath.Join(dir, "cert.pem"),
		key: filepath.Join(dir, "key.pem"), password: filepath.Join(dir, "password"),
	}
	must(t, os.WriteFile(c.password, []byte(password+"\n"), 0o600))
	writeCertificates(t, c)
	conf := embed.NewConfig()
	conf.Dir = filepath.Join(dir, "etcd")
	conf.ListenPeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	conf.ListenClientUrls = []url.URL{{Scheme: "https", Host: "127.0.0.1:0"}}
	conf.AdvertiseClientUrls = conf.ListenClientUrls
	conf.ClientTLSInfo = transport.TLSInfo{CertFile: c.cert, KeyFile: c.key, TrustedCAFile: c.ca, ClientCertAuth: true}
	conf.TickMs, conf.ElectionMs = 10, 100
	conf.BcryptCost = 4
	conf.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e, err := embed.StartEtcd(conf)
	must(t, err)
	t.Cleanup(e.Close)
	<-e.Server.ReadyNotify()
	c.endpoint = "https://" + e.Clients[0].Addr().String()
	c.setPassword(t)
	return c
}

// setPassword makes etcd require a password.
func (c cluster) setPassword(t *testing.T) {
	t.Helper()
	conf := c.config()
	conf.Username, conf.PasswordFile = "", ""
	s, err := Dial(t.Context(), conf)
	must(t, err)
	defer s.Close()
	_, err = s.client.UserAdd(t.Context(), user, password)
	must(t, err)
	_, err = s.client.UserGrantRole(t.Context(), user, "root")
	must(t, err)
	_, err = s.client.AuthEnable(t.Context())
	must(t, err)
}

func writeCertificates(t *testing.T, c cluster) {
	t.Helper()
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "test"},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	writePEM(t, c.ca, "CERTIFICATE", sign(t, ca, ca, &caKey.PublicKey, caKey))
	writePEM(t, c.cert, "CERTIFICATE", sign(t, leaf, ca, &key.PublicKey, caKey))
	der, err := x509.MarshalECPrivateKey(key)
	must(t, err)
	writePEM(t, c.key, "EC PRIVATE KEY", der)
}

func sign(t *testing.T, cert, ca *x509.Certificate, pub *ecdsa.PublicKey, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, cert, ca, pub, key)
	must(t, err)
	return der
}

func writePEM(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	must(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}

// dial connects to an empty store until the test ends.
func dial(t *testing.T, conf Config) *Store {
	t.Helper()
	s, err := Dial(t.Context(), conf)
	must(t, err)
	t.Cleanup(func() {
		wipe(t, s)
		must(t, s.Close())
	})
	return s
}
