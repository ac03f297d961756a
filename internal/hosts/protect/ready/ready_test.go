package ready

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	for _, text := range []string{
		"auto", "tcp", "postgres", "mysql", "redis",
		"http://localhost:8080/health", "http://[::1]/x?y=z", "exec:/bin/check {host} {port}",
	} {
		c, err := Parse(text)
		if err != nil || c.String() != text {
			t.Errorf("Parse(%q) = %q, %v", text, c, err)
		}
	}
	for text, port := range map[string]uint16{"http://x": 80, "http://x:8080/": 8080, "https://x/y": 443, "https://x:8443": 8443, "redis": 0} {
		if c, err := Parse(text); err != nil || c.Port() != port {
			t.Errorf("the port of %q is %d, %v", text, c.Port(), err)
		}
	}
	for _, text := range []string{"", "http", "https://", "http://", "http://:80/", "http://x:0", "http://x:99999", "exec:", "exec:  ", "Redis", "pg_isready"} {
		if c, err := Parse(text); err == nil {
			t.Errorf("Parse(%q) = %+v", text, c)
		}
	}
}

// server answers the first bytes of its client with each part.
func server(t *testing.T, answer ...string) Dial {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-served })
	go func() {
		defer close(served)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if len(answer) > 0 && answer[0] != "\n" { // a server that speaks first
				_, _ = c.Read(make([]byte, 4096))
			}
			for _, a := range answer {
				_, _ = io.WriteString(c, strings.TrimPrefix(a, "\n"))
			}
			if len(answer) > 0 {
				_ = c.(*net.TCPConn).CloseWrite()
			}
			_, _ = io.Copy(io.Discard, c) // until the client has left
			c.Close()
		}
	}()
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", l.Addr().String())
	}
}

// pgError is an error message of PostgreSQL.
func pgError(code, text string) string {
	body := "SFATAL\x00VFATAL\x00C" + code + "\x00M" + text + "\x00\x00"
	return fmt.Sprintf("E\x00\x00\x00%c%s", byte(len(body)+4), body)
}

// myError is an error packet of MySQL.
func myError(code int, text string) string {
	body := "\xff" + string([]byte{byte(code), byte(code >> 8)}) + "#08S01" + text
	return string([]byte{byte(len(body)), 0, 0, 0}) + body
}

func TestAnswers(t *testing.T) {
	const first = "\n" // the server speaks first
	for _, c := range []struct {
		name   string
		kind   Kind
		answer []string
		ready  bool
		says   string
	}{
		{"starting up", Postgres, []string{pgError("57P03", "the database system is starting up")}, false, "starting up"},
		{"wants a password", Postgres, []string{"R\x00\x00\x00\x08\x00\x00\x00\x03"}, true, ""},
		{"in two parts", Postgres, []string{"R\x00\x00\x00", "\x17\x00\x00\x00\x0aSCRAM-SHA-256\x00\x00"}, true, ""},
		{"lets in", Postgres, []string{"R\x00\x00\x00\x08\x00\x00\x00\x00Z\x00\x00\x00\x05I"}, true, ""},
		{"no such user", Postgres, []string{pgError("28000", "no role")}, true, ""},
		{"hangs up", Postgres, []string{""}, false, "no answer"},
		{"half a message", Postgres, []string{"R\x00\x00\x00\x08\x00"}, false, "no answer"},
		{"a handshake", MySQL, []string{first, "\x4a\x00\x00\x00\x0a8.0\x00"}, true, ""},
		{"stops", MySQL, []string{first, myError(1053, "Server shutdown in progress")}, false, "1053"},
		{"is full", MySQL, []string{first, myError(1040, "Too many connections")}, true, ""},
		{"refuses this host", MySQL, []string{first, myError(1130, "not allowed")}, true, ""},
		{"hangs up", MySQL, []string{first}, false, "no handshake"},
		{"half an error", MySQL, []string{first, "\x10\x00\x00\x00\xff"}, false, "no handshake"},
		{"serves", Redis, []string{"+PONG\r\n"}, true, ""},
		{"wants a password", Redis, []string{"-NOAUTH Authentication required.\r\n"}, true, ""},
		{"loads", Redis, []string{"-LOADING Redis is loading the dataset in memory\r\n"}, false, "LOADING"},
		{"speaks another protocol", Redis, []string{"HTTP/1.1 400 Bad Request\r\n\r\n"}, false, "answers PING"},
		{"a long line", Redis, []string{"+" + strings.Repeat("x", 10_000) + "\r\n"}, false, "no answer"},
		{"OK", HTTP, []string{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"}, true, ""},
		{"a redirect", HTTP, []string{"HTTP/1.1 302 Found\r\nLocation: http://192.0.2.1/\r\nContent-Length: 0\r\n\r\n"}, true, ""},
		{"starts", HTTP, []string{"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"}, false, "503"},
		{"not found", HTTP, []string{"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"}, false, "404"},
		{"a body without an end", HTTP, []string{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"}, true, ""},
		{"no HTTP", HTTP, []string{"hello\r\n"}, false, "malformed"},
	} {
		t.Run(string(c.kind)+"/"+c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			check := Check{Kind: c.kind}
			if c.kind == HTTP {
				check.URL = "http://localhost/health"
			}
			err := check.Ask(ctx, server(t, c.answer...))
			if (err == nil) != c.ready || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want ready: %v", err, c.ready)
			}
		})
	}
}

// A question to a server that accepts and does not answer ends with its context.
func TestSilence(t *testing.T) {
	for _, check := range []Check{{Kind: Postgres}, {Kind: MySQL}, {Kind: Redis}, {Kind: HTTP, URL: "http://localhost/"}} {
		t.Run(string(check.Kind), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if err := check.Ask(ctx, server(t)); err == nil {
				t.Error("a server that does not answer is ready")
			}
		})
	}
	none := errors.New("no connection")
	if err := (Check{Kind: Redis}).Ask(t.Context(), func(context.Context) (net.Conn, error) { return nil, none }); !errors.Is(err, none) {
		t.Error(err)
	}
}

// A server on this host needs no valid certificate, one elsewhere does.
func TestHTTPS(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host != "web.example" || r.TLS.ServerName != "web.example" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(s.Close)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	c, err := Parse("https://web.example/health")
	if err != nil {
		t.Fatal(err)
	}
	here := func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", s.Listener.Addr().String())
	}
	if err := c.Ask(t.Context(), here); err != nil {
		t.Error(err)
	}
	away := func(ctx context.Context) (net.Conn, error) {
		conn, err := here(ctx)
		return elsewhere{conn}, err
	}
	if err := c.Ask(t.Context(), away); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a server elsewhere with a certificate of no authority: %v", err)
	}
}

// elsewhere is a connection that leaves this host.
type elsewhere struct{ net.Conn }

func (elsewhere) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 443} }
