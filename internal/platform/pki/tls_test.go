package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast"
	"holdfast/internal/platform/atomicfile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is a deadline against hanging, not an expectation.
const patience = 20 * time.Second

// server sends to every client the node id that it has verified.
type server struct {
	addr   string
	failed chan error // errors of handshakes
}

func serve(t *testing.T, cfg *tls.Config) server {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := server{l.Addr().String(), make(chan error, 100)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.answer(c.(*tls.Conn))
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-ended
	})
	return s
}

func (s server) answer(c *tls.Conn) {
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if err := c.Handshake(); err != nil {
		s.failed <- err
		return
	}
	seen := "no node"
	if peers := c.ConnectionState().PeerCertificates; len(peers) > 0 {
		node, err := NodeOf(peers[0])
		if seen = string(node); err != nil {
			seen = err.Error()
		}
	}
	io.WriteString(c, seen)
}

// ask connects and returns the node id that the server has verified, and the server's
// certificate.
func (s server) ask(t *testing.T, cfg *tls.Config) (seen string, shown *x509.Certificate, err error) {
	t.Helper()
	raw, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	raw.SetDeadline(time.Now().Add(patience))
	c := tls.Client(raw, cfg)
	if err := c.Handshake(); err != nil {
		return "", nil, err
	}
	b, err := io.ReadAll(c) // in TLS 1.3 the server's refusal of the client arrives here
	return string(b), c.ConnectionState().PeerCertificates[0], err
}

// plain is a TLS configuration that verifies nothing.
func plain(t *testing.T, f Files) *tls.Config {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true, ClientAuth: tls.RequestClientCert}
}

func TestNodesKnowEachOther(t *testing.T) {
	fleet := newFleet(t, time.Now())
	a, b := load(t, join(t, fleet, "a", nil)), load(t, join(t, fleet, "b", nil))
	s := serve(t, b.ServerTLS())
	if seen, _, err := s.ask(t, a.ClientTLS("b")); seen != "a" || err != nil {
		t.Errorf("the server sees %q, %v", seen, err)
	}
	_, _, err := s.ask(t, a.ClientTLS("c"))
	var wrong *WrongNodeError
	if !errors.As(err, &wrong) || wrong.Got != "b" || wrong.Want != "c" {
		t.Errorf("another node: %v", err)
	}
	if _, _, err := s.ask(t, a.ClientTLS("")); err == nil {
		t.Error("a connection without an expected node succeeded")
	}
}

// forge makes the fleet's authority sign a certificate that is not a node's.
func forge(t *testing.T, fleet string, change func(*x509.Certificate)) Files {
	t.Helper()
	ca, err := readCA(fleet, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(7), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"a"},
		URIs: []*url.URL{nodeURI("a")}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	change(c)
	certPEM, keyPEM, err := issue(c, ca.Leaf, ca.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	f := FilesIn(t.TempDir())
	for path, b := range map[string][]byte{f.Cert: certPEM, f.Key: keyPEM} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// A server refuses each of these as a client, and a client refuses each as a server.
func TestStrangersAreRefused(t *testing.T) {
	fleet := newFleet(t, time.Now().Add(-24*time.Hour))
	home := load(t, join(t, fleet, "home", nil))
	stranger := func(change func(*x509.Certificate)) *tls.Config { return plain(t, forge(t, fleet, change)) }
	tls12 := plain(t, join(t, fleet, "a", nil))
	tls12.MaxVersion = tls.VersionTLS12
	for name, c := range map[string]struct {
		cfg  *tls.Config
		want string
	}{
		"another fleet": {plain(t, join(t, newFleet(t, time.Now()), "a", nil)), "unknown authority"},
		"run out":       {plain(t, join(t, fleet, "a", func(j *Join) { j.Now = time.Now().Add(-2 * time.Hour) })), "expired"},
		"TLS 1.2":       {tls12, "protocol version"},
		"no URI":        {stranger(func(c *x509.Certificate) { c.URIs = nil }), "names 0 URIs"},
		"two URIs":      {stranger(func(c *x509.Certificate) { c.URIs = append(c.URIs, nodeURI("b")) }), "names 2 URIs"},
		"a path":        {stranger(func(c *x509.Certificate) { c.URIs[0].Path = "/a/b" }), "not a valid node id"},
		"a scheme":      {stranger(func(c *x509.Certificate) { c.URIs[0].Scheme = "https" }), "not a node's"},
		"a host":        {stranger(func(c *x509.Certificate) { c.URIs[0].Host = "web" }), "not permitted"},
		"no use":        {stranger(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning} }), "key usage"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, home.ServerTLS())
			if seen, _, err := s.ask(t, c.cfg); err == nil {
				t.Errorf("as a client it is %q", seen)
			} else if why := (<-s.failed).Error(); !strings.Contains(why, c.want) && !strings.Contains(why, "unsupported versions") {
				t.Errorf("as a client it is refused because %s", why)
			}
			if _, _, err := serve(t, c.cfg).ask(t, home.ClientTLS("a")); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("as a server: %v, want %q", err, c.want)
			}
		})
	}
	s := serve(t, home.ServerTLS())
	if seen, _, err := s.ask(t, &tls.Config{InsecureSkipVerify: true}); err == nil {
		t.Errorf("a client without a certificate is %q", seen)
	}
}

// usedFor only: a certificate for clients cannot serve, and the other way round.
func TestUsesAreHeldApart(t *testing.T) {
	fleet := newFleet(t, time.Now())
	home := load(t, join(t, fleet, "home", nil))
	only := func(u x509.ExtKeyUsage) *tls.Config {
		return plain(t, forge(t, fleet, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{u} }))
	}
	client, srv := only(x509.ExtKeyUsageClientAuth), only(x509.ExtKeyUsageServerAuth)
	s := serve(t, home.ServerTLS())
	if seen, _, err := s.ask(t, client); seen != "a" || err != nil {
		t.Errorf("a client's: %q, %v", seen, err)
	}
	if seen, _, err := s.ask(t, srv); err == nil {
		t.Errorf("a server's as a client is %q", seen)
	}
	if _, _, err := serve(t, srv).ask(t, home.ClientTLS("a")); err != nil {
		t.Errorf("a server's: %v", err)
	}
	if _, _, err := serve(t, client).ask(t, home.ClientTLS("a")); err == nil {
		t.Error("a client's serves")
	}
}

func TestRenewedCertificateCountsWithoutARestart(t *testing.T) {
	fleet := newFleet(t, time.Now())
	files := join(t, fleet, "b", nil)
	a, b := load(t, join(t, fleet, "a", nil)), load(t, files)
	s, cfg := serve(t, b.ServerTLS()), a.ClientTLS("b")
	_, first, err := s.ask(t, cfg)
	if err != nil {
		t.Fatal(err)
	}
	renewed := join(t, fleet, "b", func(j *Join) { j.Out, j.Renew = filepath.Dir(files.Cert), true })
	if k := modeOf(t, renewed.Key); k != 0o600 {
		t.Errorf("the new key's mode is %o", k)
	}
	until(t, func() bool {
		_, shown, err := s.ask(t, cfg)
		if err != nil {
			t.Fatalf("while it is renewed: %v", err)
		}
		return !shown.Equal(first)
	})
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(files.Cert), ".new-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	// A new key without its certificate, as between two steps of a renewal, leaves
	// the old pair in effect.
	_, second, _ := s.ask(t, cfg)
	if err := os.Rename(join(t, fleet, "b", nil).Key, files.Key); err != nil {
		t.Fatal(err)
	}
	b.files.Get()
	if _, shown, err := s.ask(t, cfg); err != nil || !shown.Equal(second) {
		t.Errorf("half a pair: %v", err)
	}
}

// An authority is replaced while nodes run: first every node trusts both.
func TestAuthorityIsReplacedUnderWay(t *testing.T) {
	old, young := newFleet(t, time.Now()), newFleet(t, time.Now())
	home, moved := join(t, old, "home", nil), join(t, young, "moved", nil)
	h, m := load(t, home), load(t, moved)
	s := serve(t, h.ServerTLS())
	if _, _, err := s.ask(t, m.ClientTLS("home")); err == nil {
		t.Fatal("two fleets are one")
	}
	var both []byte
	for _, dir := range []string{old, young} {
		b, err := os.ReadFile(filepath.Join(dir, CAFile))
		if err != nil {
			t.Fatal(err)
		}
		both = append(both, b...)
	}
	for _, f := range []Files{home, moved} {
		if err := atomicfile.Write(f.CA, both, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	until(t, func() bool {
		seen, _, err := s.ask(t, m.ClientTLS("home"))
		return seen == "moved" && err == nil
	})
	// With both in ca.pem, the new authority may issue the node's next certificate.
	join(t, young, "home", func(j *Join) { j.Out, j.Renew = filepath.Dir(home.Cert), true })
	if id := load(t, home); id.Node() != holdfast.NodeID("home") {
		t.Errorf("it is %s", id.Node())
	}
}

// until waits until changed files are read.
func until(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not so after %v", patience)
		}
	}
}
