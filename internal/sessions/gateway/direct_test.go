package gateway

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// A request of HTTP/2 is sent once, and its response is passed on whatever its form is.
func TestDirect(t *testing.T) {
	cert, key := certificate(t)
	whole := plainHead + "Content-Length: 2\r\n\r\nok"
	chunked := plainHead + "Transfer-Encoding: chunked\r\n\r\n"
	large := strings.Repeat("x", 100_000)
	for name, c := range map[string]struct {
		header   []string // of the request
		response []string // with pauses between the parts
		direct   bool
		status   int
		want     string
	}{
		"plain":             {nil, []string{whole}, true, 200, "ok"},
		"no body":           {nil, []string{plainHead + "Content-Length: 0\r\n\r\n"}, true, 200, ""},
		"204":               {nil, []string{"HTTP/1.1 204 No Content\r\nDate: now\r\n\r\n"}, true, 204, ""},
		"not modified":      {nil, []string{"HTTP/1.1 304 Not Modified\r\nDate: now\r\nETag: a\r\n\r\n"}, true, 304, ""},
		"header and body":   {nil, []string{plainHead + "Content-Length: 2\r\n\r\n", "o", "k"}, true, 200, "ok"},
		"large":             {nil, []string{plainHead + "Content-Length: 100000\r\n\r\n" + large}, true, 200, large},
		"chunks":            {nil, []string{chunked + "2\r\nok\r\n0\r\n\r\n"}, true, 200, "ok"},
		"late chunks":       {nil, []string{chunked + "1\r\no\r\n", "1\r\nk\r\n0\r\n\r\n"}, true, 200, "ok"},
		"parts of a header": {nil, []string{whole[:20], whole[20:]}, true, 200, "ok"},
		"interim":           {nil, []string{"HTTP/1.1 103 Early Hints\r\n\r\n" + whole}, true, 200, "ok"},
		"until the end":     {nil, []string{plainHead + "Connection: close\r\n\r\nok"}, true, 200, "ok"},
		"closes":            {nil, []string{plainHead + "Connection: close\r\nContent-Length: 2\r\n\r\nok"}, true, 200, "ok"},
		"trailing bytes":    {nil, []string{whole + "HTTP/1.1 200 OK\r\n\r\n"}, true, 200, "ok"},
		"slow":              {nil, []string{"", "", "", "", whole}, true, 200, "ok"},
		"no response":       {nil, nil, true, 502, ""},
		"with a login":      {[]string{"Cookie", "a=b; holdfast_login=secret"}, []string{whole}, false, 200, "ok"},
		"with trailers":     {[]string{"Te", "trailers"}, []string{whole}, false, 200, "ok"},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var requests []string
			f := startRaw(t, func(s net.Conn, request string) bool {
				mu.Lock()
				requests = append(requests, request)
				mu.Unlock()
				for i, part := range c.response {
					if i > 0 {
						time.Sleep(fastWait / 3) // not a wait: the parts have to arrive apart
					}
					if _, err := io.WriteString(s, part); err != nil {
						return false
					}
				}
				return c.response != nil && !strings.Contains(c.response[0], "close")
			}, func(c *Config) { c.CertFile, c.KeyFile = cert, key })
			f.client.Transport.(*http.Transport).ForceAttemptHTTP2 = true
			for range 2 {
				req := f.request("GET", "/s/alice/x?y", nil, append([]string{"X-Spelling", "kept", "X-Forwarded-For", "1.2.3.4"}, c.header...)...)
				req.URL.Scheme = "https"
				resp, body := f.do(req)
				if resp.ProtoMajor != 2 || resp.StatusCode != c.status || c.status != 502 && body != c.want {
					t.Fatalf("%s %d, a body of %d bytes: %.100q", resp.Proto, resp.StatusCode, len(body), body)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			for _, r := range requests {
				// net/http sorts the fields by name.
				direct := strings.HasSuffix(r, "\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Prefix: /s/alice\r\n\r\n")
				if direct != c.direct || !strings.HasPrefix(r, "GET /x?y HTTP/1.1\r\nHost: ") || strings.Contains(r, "1.2.3.4") || strings.Contains(r, "secret") {
					t.Errorf("direct %v: %q", direct, r)
				}
			}
			if len(requests) != 2 {
				t.Errorf("%d requests were sent: %q", len(requests), requests)
			}
		})
	}
}

// A plain request is written as net/http writes it.
func FuzzPlain(f *testing.F) {
	f.Add("/s/alice/a?b=c", "sessions.test", "Accept", "text/html", "Cookie", "a=b")
	f.Add("/s/alice/%2f//..?", "sessions.test:443", "X-Forwarded-For", "1.2.3.4", "X_real_ip", "1.2.3.4")
	f.Add("/s/alice/ä?%zz", "[::1]:8080", "Referer", "/", "User-Agent", "")
	f.Add("/s/alice/a b", "x y", "Host", "other", "Content-Length", "0")
	f.Add("/s/alice", "[fe80::1%25eth0]", "Connection", "close", "Te", "trailers")
	f.Fuzz(func(t *testing.T, path, host, name1, value1, name2, value2 string) {
		u, err := url.ParseRequestURI(path)
		if err != nil {
			return
		}
		header := http.Header{}
		for _, field := range [][2]string{{name1, value1}, {name2, value2}} {
			// net/http's server refuses others.
			if !isToken(field[0]) || strings.ContainsAny(field[1], "\x00\r\n") || strings.TrimSpace(field[1]) != field[1] || !visible("a"+strings.NewReplacer(" ", "", "\t", "").Replace(field[1])) {
				return
			}
			header.Add(field[0], field[1])
		}
		r := &http.Request{Method: "GET", URL: u, Proto: "HTTP/2.0", ProtoMajor: 2, Header: header, Host: host, RemoteAddr: "192.0.2.1:5", TLS: &tls.ConnectionState{}, Body: http.NoBody}
		target, err := DefaultConfig().clientTarget(host, u.EscapedPath())
		if err != nil || !plain(r, target) {
			return
		}
		out, err := outgoing(r, &request{target: target})
		if err != nil {
			t.Fatal(err)
		}
		var written bytes.Buffer
		if err := out.Write(&written); err != nil {
			t.Fatalf("%v: net/http does not write it", err)
		}
		want, err := http.ReadRequest(bufio.NewReader(&written))
		if err != nil {
			return // a server would refuse both
		}
		got, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(appendPlain(nil, r, target))))
		if err == nil && got.Header.Get("User-Agent") == "" {
			got.Header.Del("User-Agent") // net/http does not send an empty one
		}
		if err != nil || got.RequestURI != want.RequestURI || got.Host != want.Host || got.Method != want.Method || !reflect.DeepEqual(got.Header, want.Header) {
			t.Errorf("%v\n%+v\nnot %+v", err, got, want)
		}
	})
}

func isToken(name string) bool {
	return name != "" && !slices.ContainsFunc([]byte(name), func(c byte) bool {
		return c <= ' ' || c > '~' || strings.IndexByte("()<>@,;:\\\"/[]?={}", c) >= 0
	})
}
