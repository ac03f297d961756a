package ready

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
)

// maxAnswer limits what is read of an answer, in bytes.
const maxAnswer = 64 << 10

// cannotConnectNow is the SQLSTATE with which PostgreSQL refuses clients while it starts,
// recovers or stops (errcodes.txt).
const cannotConnectNow = "57P03"

// askPostgres sends a startup message ("Message Formats" of PostgreSQL's manual). Only the
// answer to it says whether clients are let in: an SSLRequest is answered at any time.
func askPostgres(c net.Conn) error {
	b := binary.BigEndian.AppendUint32(make([]byte, 4), 3<<16) // protocol 3.0
	b = append(b, "user\x00postgres\x00database\x00postgres\x00application_name\x00holdfast\x00\x00"...)
	binary.BigEndian.PutUint32(b, uint32(len(b)))
	if _, err := c.Write(b); err != nil {
		return err
	}
	r := bufio.NewReader(io.LimitReader(c, maxAnswer))
	kind, body, err := postgresMessage(r)
	if err != nil {
		return fmt.Errorf("no answer to a startup message: %w", err)
	}
	switch {
	case kind == 'E' && postgresField(body, 'C') == cannotConnectNow:
		return errors.New(postgresField(body, 'M'))
	case kind == 'R' && len(body) == 4 && binary.BigEndian.Uint32(body) == 0:
		// It needs no password, and began a session. Without a farewell the server
		// would log that the client is lost.
		_, _ = c.Write([]byte{'X', 0, 0, 0, 4})
		_, _ = io.Copy(io.Discard, r)
	}
	return nil
}

func postgresMessage(r *bufio.Reader) (kind byte, body []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n < 4 || n > maxAnswer {
		return head[0], nil, nil // of another protocol, or another version
	}
	body = make([]byte, n-4)
	_, err = io.ReadFull(r, body)
	return head[0], body, err
}

// postgresField returns a field of an error message.
func postgresField(body []byte, field byte) string {
	for f := range strings.SplitSeq(string(body), "\x00") {
		if f != "" && f[0] == field {
			return f[1:]
		}
	}
	return ""
}

// Errors of MySQL and MariaDB before the handshake, from a server that serves others
// (mysqld_error.h).
const (
	tooManyConnections = 1040
	hostBlocked        = 1129
	hostNotPrivileged  = 1130
)

// askMySQL reads the packet that the server sends first: a handshake, or an error.
func askMySQL(c net.Conn) error {
	var head [5]byte // length, sequence number, and the first byte of the payload
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return fmt.Errorf("no handshake: %w", err)
	}
	if head[4] != 0xff {
		return nil
	}
	n := int(head[0]) | int(head[1])<<8 | int(head[2])<<16
	body := make([]byte, min(max(n-1, 2), 512))
	read, err := io.ReadAtLeast(c, body, 2)
	if err != nil {
		return fmt.Errorf("no handshake: %w", err)
	}
	switch code := binary.LittleEndian.Uint16(body); code {
	case tooManyConnections, hostBlocked, hostNotPrivileged:
		return nil
	default:
		return fmt.Errorf("error %d: %s", code, strings.ToValidUTF8(string(body[2:read]), ""))
	}
}

// askRedis sends PING. A server that wants a password, or refuses for another reason than
// that it loads its data, serves.
func askRedis(c net.Conn) error {
	if _, err := io.WriteString(c, "PING\r\n"); err != nil {
		return err
	}
	line, err := bufio.NewReader(io.LimitReader(c, 512)).ReadString('\n')
	switch line = strings.TrimSpace(line); {
	case err != nil:
		return fmt.Errorf("no answer to PING: %w", err)
	case strings.HasPrefix(line, "-LOADING"):
		return errors.New(strings.TrimPrefix(line, "-"))
	case strings.HasPrefix(line, "+"), strings.HasPrefix(line, "-"):
		return nil
	}
	return fmt.Errorf("answers PING with %q", line)
}

// askHTTP requests the URL, and follows no redirect.
func askHTTP(ctx context.Context, url string, dial Dial) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "holdfast-protect")
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialTLS(ctx, req.URL.Hostname(), dial)
		},
		DisableKeepAlives: true, MaxResponseHeaderBytes: maxAnswer,
	}
	defer t.CloseIdleConnections()
	resp, err := t.RoundTrip(req)
	if err != nil {
		return err
	}
	if resp.ContentLength <= maxAnswer { // and -1 for one that may never end
		_, _ = io.CopyN(io.Discard, resp.Body, resp.ContentLength)
	}
	_ = resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode > 399 {
		return fmt.Errorf("%s answers %s", url, resp.Status)
	}
	return nil
}

// dialTLS connects with TLS. A server on this host is not asked for a valid certificate:
// the question reveals nothing, and such a server is often asked by another name than that
// of its certificate.
func dialTLS(ctx context.Context, name string, dial Dial) (net.Conn, error) {
	conn, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	c := tls.Client(conn, &tls.Config{ServerName: name, InsecureSkipVerify: staysHere(conn)})
	if err := c.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return c, nil
}

// staysHere reports whether a connection does not leave this host: the address of its server
// is one of loopback, or the client's own.
func staysHere(c net.Conn) bool {
	local, ok := c.LocalAddr().(*net.TCPAddr)
	remote, ok2 := c.RemoteAddr().(*net.TCPAddr)
	return ok && ok2 && (remote.IP.IsLoopback() || remote.IP.Equal(local.IP))
}
