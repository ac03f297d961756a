package e2b

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

// domain is that of the tests with TLS. All its names are this host.
const domain = "e2b.test"

// startDomain starts an agent that the SDKs reach by its domain, with TLS.
func startDomain(t *testing.T, template, ports, mounts string) *node {
	t.Helper()
	return startDomainOn(t, newNode(t, "127.0.0.1:443"), "user", template, ports, mounts)
}

func startDomainOn(t *testing.T, n *node, user, template, ports, mounts string) *node {
	t.Helper()
	serveDNS(t)
	n.mounts = mounts
	ca := certificates(t, n.dir)
	n.environment = []string{"E2B_DOMAIN=" + domain, "SSL_CERT_FILE=" + ca, "NODE_EXTRA_CA_CERTS=" + ca}
	n.configure(fmt.Sprintf("e2b: {listen: %q, domain: %s, api_keys_file: %s, cert_file: %[4]s/cert.pem, key_file: %[4]s/key.pem, user: %[5]s}", n.sdks, domain, n.keys, n.dir, user), template, ports)
	n.run()
	return n
}

// certificates writes a certificate for the domain, and returns the file of its CA.
func certificates(t *testing.T, dir string) string {
	t.Helper()
	caKey, key := newKey(t), newKey(t)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "tests"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: domain}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		DNSNames: []string{domain, "*." + domain}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	caText, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	if err != nil {
		t.Fatal(err)
	}
	text, err := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)
	if err != nil {
		t.Fatal(err)
	}
	keyText, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, filepath.Join(dir, "key.pem"), "PRIVATE KEY", keyText)
	writePEM(t, filepath.Join(dir, "cert.pem"), "CERTIFICATE", text)
	return writePEM(t, filepath.Join(dir, "ca.pem"), "CERTIFICATE", caText)
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func writePEM(t *testing.T, path, kind string, text []byte) string {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: text}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// serveDNS makes each name the address of this host, for the programs of the lab.
func serveDNS(t *testing.T) {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:53")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		answerDNS(conn)
	}()
	t.Cleanup(func() {
		conn.Close()
		<-done
	})
	file := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(file, []byte("nameserver 127.0.0.1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(file, "/etc/resolv.conf", "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount("/etc/resolv.conf", unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// answerDNS answers questions for IPv4 addresses until conn is closed. There are no other
// records.
func answerDNS(conn net.PacketConn) {
	buf := make([]byte, 512)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		q := m.Questions[0]
		out := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, RecursionAvailable: true}, Questions: m.Questions}
		if q.Type == dnsmessage.TypeA {
			out.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 60},
				Body:   &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}},
			}}
		}
		if text, err := out.Pack(); err == nil {
			_, _ = conn.WriteTo(text, from) // the program asks again
		}
	}
}
