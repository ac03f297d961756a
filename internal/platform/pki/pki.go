// Package pki is a fleet's own certificate authority. One command makes it, without a
// network. It issues a certificate for each node, and makes TLS configurations with
// which nodes identify each other by node id, whatever their addresses are.
package pki

import (
	"crypto/x509"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	"holdfast"
)

// File names, in the directory of an authority or of a node.
const (
	CAFile   = "ca.pem"
	CAKey    = "ca.key"
	CertFile = "node.pem"
	KeyFile  = "node.key"
)

// Files are the paths of the PEM files of a node's identity.
type Files struct {
	CA   string // certificates of the authority; several while it is replaced
	Cert string // the node's
	Key  string // its key, with no permission for group and others
}

// FilesIn are the files as Join leaves them in dir.
func FilesIn(dir string) Files {
	return Files{CA: filepath.Join(dir, CAFile), Cert: filepath.Join(dir, CertFile), Key: filepath.Join(dir, KeyFile)}
}

// A node's id is in its certificate as a URI (RFC 5280, 4.2.1.6):
// holdfast://node/<id>, the id escaped as a path's segment.
const (
	uriScheme = "holdfast"
	uriHost   = "node" // the authority's name constraint, too
)

// maxNodeLen is the longest node id in bytes, that of a host name.
const maxNodeLen = 253

func nodeURI(id holdfast.NodeID) *url.URL {
	return &url.URL{Scheme: uriScheme, Host: uriHost, Path: "/" + string(id)}
}

// NodeOf returns the id of the node that a certificate is for. It does not check the
// signature: a *tls.ConnectionState of this package's configurations is already
// verified. The error says why the certificate is not a node's.
func NodeOf(cert *x509.Certificate) (holdfast.NodeID, error) {
	if len(cert.URIs) != 1 {
		return "", fmt.Errorf("the certificate of %q names %d URIs, a node's names one", cert.Subject.CommonName, len(cert.URIs))
	}
	u := cert.URIs[0]
	id, ok := strings.CutPrefix(u.Path, "/")
	if !ok || u.Scheme != uriScheme || u.Host != uriHost || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("the certificate's URI %s is not a node's", u.Redacted())
	}
	return holdfast.NodeID(id), checkNode(holdfast.NodeID(id))
}

// checkNode checks an id by the rules for node in the configuration.
func checkNode(id holdfast.NodeID) error {
	s := string(id)
	if s == "" || len(s) > maxNodeLen || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == '/' || r > '~' }) {
		return &NodeError{id}
	}
	return nil
}

// NodeError means that a node's id is not valid.
type NodeError struct{ Node holdfast.NodeID }

func (e *NodeError) Error() string {
	if e.Node == "" {
		return "the node's id is empty"
	}
	return fmt.Sprintf("%q is not a valid node id", string(e.Node))
}

// Hint says where a node's id comes from.
func (e *NodeError) Hint() string {
	return "a node's id is set in its configuration, by default to its host name"
}
