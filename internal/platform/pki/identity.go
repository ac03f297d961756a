package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"holdfast"
	"holdfast/internal/platform/keyfile"
)

// Identity is a node's certificate and the authority that it trusts. It reads their
// files again when they change, at most once in keyfile.Every. Any goroutine may use
// it. It has no goroutine of its own.
type Identity struct {
	files *keyfile.Watched[*material]
}

// material is the content of the files.
type material struct {
	node  holdfast.NodeID
	cert  *tls.Certificate
	roots *x509.CertPool
}

// Load reads a node's identity. Load fails if other users can read the key, or if the
// key and the certificate do not match. It also fails if the certificate is not a
// node's, is not signed by the authority, or is not valid now.
func Load(f Files, log *slog.Logger) (*Identity, error) {
	w, err := keyfile.Watch(log, func() (*material, error) { return read(f, time.Now()) }, f.CA, f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("the node's identity: %w", err)
	}
	return &Identity{files: w}, nil
}

func read(f Files, now time.Time) (*material, error) {
	caPEM, err := keyfile.Read(f.CA)
	if err != nil {
		return nil, err
	}
	certPEM, err := keyfile.Read(f.Cert)
	if err != nil {
		return nil, err
	}
	keyPEM, err := keyfile.ReadSecret(f.Key)
	if err != nil {
		return nil, err
	}
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Cert, err)
	}
	m := &material{cert: &cert, roots: x509.NewCertPool()}
	if !m.roots.AppendCertsFromPEM(caPEM) {
		return nil, fmt.Errorf("%s contains no certificate", f.CA)
	}
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if m.node, err = m.check([]*x509.Certificate{cert.Leaf}, use, now); err != nil {
			return nil, holdfast.WithHint(fmt.Errorf("%s: %w", f.Cert, err), "issue a new one: holdfast node join --renew")
		}
	}
	return m, nil
}

// check verifies a chain as a node's, for the use, and returns the node.
func (m *material) check(chain []*x509.Certificate, use x509.ExtKeyUsage, now time.Time) (holdfast.NodeID, error) {
	if len(chain) == 0 {
		return "", errors.New("the peer sent no certificate")
	}
	// No intermediates: the authority signs nodes itself.
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: m.roots, KeyUsages: []x509.ExtKeyUsage{use}, CurrentTime: now})
	if err != nil {
		return "", err
	}
	return NodeOf(chain[0])
}

// Node is the id that the certificate is for.
func (i *Identity) Node() holdfast.NodeID { return i.files.Get().node }

// Expires is when the certificate expires.
func (i *Identity) Expires() time.Time { return i.files.Get().cert.Leaf.NotAfter }

// ServerTLS is for a listener that only nodes of the fleet may connect to.
// NodeOf(state.PeerCertificates[0]) is the node that connected. Open connections stay
// when a certificate expires.
func (i *Identity) ServerTLS() *tls.Config {
	c := i.common(x509.ExtKeyUsageClientAuth, "")
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return i.files.Get().cert, nil }
	c.ClientAuth = tls.RequireAnyClientCert // VerifyConnection verifies it
	return c
}

// ClientTLS is for connections to the node want only: the server's certificate has to
// have that id, at whatever address the server was reached. With an empty want every
// connection fails.
func (i *Identity) ClientTLS(want holdfast.NodeID) *tls.Config {
	c := i.common(x509.ExtKeyUsageServerAuth, want)
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return i.files.Get().cert, nil }
	c.InsecureSkipVerify = true // of host names; VerifyConnection checks the chain and the id
	if want == "" {
		c.VerifyConnection = func(tls.ConnectionState) error { return errors.New("the node to connect to is not named") }
	}
	return c
}

// common is the configuration of both sides. TLS sessions are not resumed, so that
// every connection is checked against the present files.
func (i *Identity) common(peer x509.ExtKeyUsage, want holdfast.NodeID) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		SessionTicketsDisabled: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			node, err := i.files.Get().check(s.PeerCertificates, peer, time.Now())
			if err != nil {
				return fmt.Errorf("the peer is not a node of this fleet: %w", err)
			}
			if want != "" && node != want {
				return &WrongNodeError{Want: want, Got: node}
			}
			return nil
		},
	}
}

// WrongNodeError means that another node of the fleet answered than the expected one:
// the address belongs to another node now.
type WrongNodeError struct{ Want, Got holdfast.NodeID }

func (e *WrongNodeError) Error() string {
	return fmt.Sprintf("node %s answered, and %s was expected", e.Got, e.Want)
}
