package keyfile

import (
	"crypto/tls"
	"log/slog"
)

// ServerTLS is the TLS of a listener for clients, with TLS 1.2 or later. A changed certificate or
// key takes effect with the next connection, at most Every later; a pair that does not match
// leaves the former one in effect, and is logged. The mode of the key is not checked, because
// other programs, such as ACME clients, own these files.
func ServerTLS(log *slog.Logger, certFile, keyFile string) (*tls.Config, error) {
	w, err := Watch(log, func() (*tls.Certificate, error) {
		cert, err := tls.LoadX509KeyPair(certFile, keyFile)
		return &cert, err
	}, certFile, keyFile)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return w.Get(), nil },
	}, nil
}
