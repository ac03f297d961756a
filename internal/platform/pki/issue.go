package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/platform/atomicfile"
	"holdfast/internal/platform/keyfile"
)

// The validity of certificates. It begins backdate before they are made, for nodes whose
// clocks are behind, by the hours of a time zone for example.
const (
	CAValidity      = 10 * 365 * 24 * time.Hour
	DefaultValidity = 365 * 24 * time.Hour
	backdate        = 24 * time.Hour
)

// maxAddresses bounds the names and addresses of one certificate.
const maxAddresses = 64

// InitCA makes an authority in dir, which it creates: ca.pem, and ca.key with mode
// 0600. It overwrites nothing. It returns when the authority expires, which is
// CAValidity after now.
func InitCA(dir string, now time.Time) (until time.Time, err error) {
	cert, key := filepath.Join(dir, CAFile), filepath.Join(dir, CAKey)
	for _, path := range []string{cert, key} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			if err == nil {
				err = fmt.Errorf("%s is there already", path)
			}
			return time.Time{}, holdfast.WithHint(err, "an authority is made once for a fleet; name another directory for another one")
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return time.Time{}, err
	}
	uses := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	tmpl := &x509.Certificate{
		Subject:   pkix.Name{CommonName: "Holdfast fleet authority"},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(CAValidity),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, // it signs nodes and no other authorities
		KeyUsage: x509.KeyUsageCertSign, ExtKeyUsage: uses,
		// The authority is confined to URIs of nodes. Names and addresses are not
		// constrained.
		PermittedURIDomains: []string{uriHost}, PermittedDNSDomainsCritical: true,
	}
	certPEM, keyPEM, err := issue(tmpl, tmpl, nil)
	if err != nil {
		return time.Time{}, fmt.Errorf("make the authority: %w", err)
	}
	if err := create(key, keyPEM, 0o600); err != nil {
		return time.Time{}, err
	}
	if err := create(cert, certPEM, 0o644); err != nil {
		return time.Time{}, errors.Join(err, os.Remove(key))
	}
	return tmpl.NotAfter, nil
}

// Join has the parameters of a node's certificate.
type Join struct {
	CA        string // directory of the authority
	Node      holdfast.NodeID
	Addresses []string      // host names and IP addresses of the node; optional: nodes check the id
	Validity  time.Duration // over 0; limited to that of the authority
	Out       string        // directory, which is created
	Renew     bool          // replace an existing certificate
	Now       time.Time     // the present
}

// Do writes node.pem, node.key (mode 0600) and ca.pem to Out and returns when the
// certificate expires. With Renew each file is replaced by rename, the key first.
// Readers keep the old pair until key and certificate match.
func (j Join) Do() (until time.Time, err error) {
	ca, err := readCA(j.CA, j.Now)
	if err != nil {
		return time.Time{}, fmt.Errorf("the authority: %w", err)
	}
	tmpl, err := j.template(ca.Leaf.NotAfter)
	if err != nil {
		return time.Time{}, err
	}
	certPEM, keyPEM, err := issue(tmpl, ca.Leaf, ca.PrivateKey)
	if err != nil {
		return time.Time{}, fmt.Errorf("make the node's identity: %w", err)
	}
	return tmpl.NotAfter, j.write(encodeCert(ca.Certificate[0]), certPEM, keyPEM)
}

func (j Join) write(ca, cert, key []byte) error {
	if err := os.MkdirAll(j.Out, 0o700); err != nil {
		return err
	}
	f := FilesIn(j.Out)
	if err := j.mayWrite(f, ca); err != nil {
		return err
	}
	put := create
	if j.Renew {
		put = atomicfile.Write
	}
	if err := put(f.Key, key, 0o600); err != nil {
		return err
	}
	if err := put(f.Cert, cert, 0o644); err != nil {
		return err
	}
	if _, err := os.Lstat(f.CA); err == nil {
		return nil // this authority is in it, possibly beside others
	}
	return create(f.CA, ca, 0o644)
}

// mayWrite checks the target before anything is written.
func (j Join) mayWrite(f Files, ca []byte) error {
	there, err := keyfile.Read(f.CA)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil && !bytes.Contains(there, ca) {
		return holdfast.WithHint(fmt.Errorf("%s exists and is of another authority", f.CA), "name another directory with --out")
	}
	for _, path := range []string{f.Cert, f.Key} {
		if _, err := os.Lstat(path); err == nil && !j.Renew {
			return holdfast.WithHint(fmt.Errorf("%s is there already", path), "replace it with --renew; the agent takes the new one without a restart")
		}
	}
	return nil
}

func (j Join) template(caEnds time.Time) (*x509.Certificate, error) {
	if err := checkNode(j.Node); err != nil {
		return nil, err
	}
	if j.Validity <= 0 {
		return nil, fmt.Errorf("the validity is %v, it has to be over 0", j.Validity)
	}
	if len(j.Addresses) > maxAddresses {
		return nil, fmt.Errorf("there are %d addresses, at most %d are allowed", len(j.Addresses), maxAddresses)
	}
	t := &x509.Certificate{
		NotBefore: j.Now.Add(-backdate), NotAfter: j.Now.Add(j.Validity),
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	t.URIs = append(t.URIs, nodeURI(j.Node))
	if len(j.Node) <= 64 { // RFC 5280, ub-common-name; only for display
		t.Subject.CommonName = string(j.Node)
	}
	if t.NotAfter.After(caEnds) {
		t.NotAfter = caEnds
	}
	for _, a := range j.Addresses {
		if ip, err := netip.ParseAddr(a); err == nil && ip.Zone() == "" {
			t.IPAddresses = append(t.IPAddresses, net.IP(ip.AsSlice()))
		} else if isHostName(a) {
			t.DNSNames = append(t.DNSNames, a)
		} else {
			return nil, holdfast.WithHint(fmt.Errorf("%q is neither a host name nor an IP address", a), "give addresses without a port")
		}
	}
	return t, nil
}

// isHostName: RFC 1123, 2.1.
func isHostName(s string) bool {
	if len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if _, err := holdfast.ParseSessionKey(strings.ToLower(label)); err != nil { // a key is a DNS label
			return false
		}
	}
	return true
}

// readCA reads an authority, which has to be valid now.
func readCA(dir string, now time.Time) (*tls.Certificate, error) {
	certPEM, err := keyfile.Read(filepath.Join(dir, CAFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, holdfast.WithHint(err, "make one with: holdfast node init-ca --out "+dir)
	}
	if err != nil {
		return nil, err
	}
	keyPEM, err := keyfile.ReadSecret(filepath.Join(dir, CAKey))
	if err != nil {
		return nil, err
	}
	ca, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	switch {
	case !ca.Leaf.IsCA:
		return nil, fmt.Errorf("%s: the certificate is not that of an authority", dir)
	case now.Before(ca.Leaf.NotBefore), now.After(ca.Leaf.NotAfter):
		return nil, holdfast.WithHint(fmt.Errorf("%s: it is valid only from %s to %s", dir, ca.Leaf.NotBefore.Format(time.DateOnly), ca.Leaf.NotAfter.Format(time.DateOnly)),
			"docs/fleet-certificates.md says how a new authority takes an old one's place")
	}
	return &ca, nil
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// issue makes a key and its certificate. parent's key signs the certificate; the new key
// signs it if parentKey is nil.
func issue(tmpl, parent *x509.Certificate, parentKey crypto.PrivateKey) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate a key: %w", err)
	}
	if parentKey == nil {
		parentKey = key
	}
	cert, err := x509.CreateCertificate(rand.Reader, tmpl, parent, key.Public(), parentKey)
	if err != nil {
		return nil, nil, fmt.Errorf("sign a certificate: %w", err)
	}
	text, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode a key: %w", err)
	}
	return encodeCert(cert), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text}), nil
}
