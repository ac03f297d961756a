package keep

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"time"
)

// protocol is what a server speaks.
type protocol string

const (
	http1   protocol = "HTTP/1"
	overTLS protocol = "TLS"
	other   protocol = "another protocol"
)

// recogniseLimit limits each question to the old server.
const recogniseLimit = 2 * time.Second

// recognise asks a server what it speaks. A server of HTTP/1 without TLS answers the
// beginning of a TLS handshake with an HTTP error, and a request with a status line. A
// server with TLS may do the latter as well.
func recognise(ctx context.Context, dial func(context.Context) (net.Conn, error)) (protocol, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*recogniseLimit)
	defer cancel()
	if is, err := speaksTLS(ctx, dial); is || err != nil {
		return overTLS, err
	}
	is, err := speaksHTTP(ctx, dial)
	if err != nil || !is {
		return other, err
	}
	return http1, nil
}

// speaksTLS reports whether the server answers with a record of TLS.
func speaksTLS(ctx context.Context, dial func(context.Context) (net.Conn, error)) (bool, error) {
	c, err := dial(ctx)
	if err != nil {
		return false, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(recogniseLimit))
	// The certificate does not matter: no data is sent.
	err = tls.Client(c, &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"}).HandshakeContext(ctx)
	var alert *net.OpError
	return err == nil || errors.As(err, &alert) && alert.Op == "remote error", nil
}

// speaksHTTP reports whether the server answers a request with a status line of HTTP/1.
func speaksHTTP(ctx context.Context, dial func(context.Context) (net.Conn, error)) (bool, error) {
	c, err := dial(ctx)
	if err != nil {
		return false, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(recogniseLimit))
	if _, err := io.WriteString(c, "OPTIONS * HTTP/1.1\r\nHost: localhost\r\nUser-Agent: holdfast\r\nConnection: close\r\n\r\n"); err != nil {
		return false, nil // it closes the connection before it has read a request
	}
	var status [7]byte
	_, err = io.ReadFull(c, status[:])
	return err == nil && string(status[:]) == "HTTP/1.", nil
}

// requestWords are the first four bytes of requests: the methods of RFC 9110, PATCH
// (RFC 5789), and those of WebDAV (RFC 4918, RFC 3253).
func requestWords() [][4]byte {
	var words [][4]byte
	for _, w := range []string{
		"GET ", "HEAD", "POST", "PUT ", "DELE", "OPTI", "TRAC", "PATC", "CONN",
		"PROP", "MKCO", "COPY", "MOVE", "LOCK", "UNLO", "REPO", "SEAR", "PURG",
	} {
		words = append(words, [4]byte([]byte(w)))
	}
	return words
}

// maxMethod limits the length of a method.
const maxMethod = 24

// beginsRequest reports whether data may be the beginning of a request: a method of capital
// letters, and a space unless the data ends before.
func beginsRequest(b []byte) bool {
	for i, c := range b[:min(len(b), maxMethod)] {
		switch {
		case c == ' ':
			return i > 0
		case (c < 'A' || c > 'Z') && c != '-' && c != '_':
			return false
		}
	}
	return len(b) < maxMethod
}
