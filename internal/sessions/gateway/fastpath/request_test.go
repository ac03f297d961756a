package fastpath

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"slices"
	"testing"
)

const host = "Host: a.test\r\n"

func TestRequest(t *testing.T) {
	var r Request
	text := "POST /s/alice/a%20b?x=%zz HTTP/1.1\r\n" + host +
		"Connection: Keep-Alive\r\nKeep-Alive: 5\r\nForwarded: for=1\r\nx-Mine:  1 \t\r\ncookie: a=b\r\nContent-Length: 2\r\norigin: null\r\n\r\nok"
	if !r.Parse([]byte(text)) {
		t.Fatal("not plain")
	}
	want := []Field{{"x-Mine", "1", Other}, {"cookie", "a=b", Cookie}, {"Content-Length", "2", Other}, {"origin", "null", Other}}
	if r.Method != "POST" || r.Path != "/s/alice/a%20b" || r.Query != "?x=%zz" || r.Host != "a.test" || !r.Origin ||
		string(r.Body) != "ok" || !slices.Equal(r.Fields, want) {
		t.Errorf("%+v", r)
	}
}

// requestsLeft are requests that net/http gets.
var requestsLeft = map[string]string{
	"empty":                    "",
	"part of a header":         "GET / HTTP/1.1\r\nHost: a",
	"HTTP/1.0":                 "GET / HTTP/1.0\r\n" + host + "\r\n",
	"HEAD":                     "HEAD / HTTP/1.1\r\n" + host + "\r\n",
	"CONNECT":                  "CONNECT a.test:80 HTTP/1.1\r\n" + host + "\r\n",
	"small method":             "get / HTTP/1.1\r\n" + host + "\r\n",
	"whole URL":                "GET http://a.test/ HTTP/1.1\r\n" + host + "\r\n",
	"asterisk":                 "OPTIONS * HTTP/1.1\r\n" + host + "\r\n",
	"two slashes":              "GET //b.test/ HTTP/1.1\r\n" + host + "\r\n",
	"two spaces":               "GET  / HTTP/1.1\r\n" + host + "\r\n",
	"space in the path":        "GET /a b HTTP/1.1\r\n" + host + "\r\n",
	"half an escape":           "GET /a%2 HTTP/1.1\r\n" + host + "\r\n",
	"no hexadecimal digits":    "GET /%zz HTTP/1.1\r\n" + host + "\r\n",
	"fragment":                 "GET /?a#b HTTP/1.1\r\n" + host + "\r\n",
	"backslash":                "GET /a\\b HTTP/1.1\r\n" + host + "\r\n",
	"not ASCII":                "GET /ä HTTP/1.1\r\n" + host + "\r\n",
	"no host":                  "GET / HTTP/1.1\r\nA: b\r\n\r\n",
	"empty host":               "GET / HTTP/1.1\r\nHost: \r\n\r\n",
	"two hosts":                "GET / HTTP/1.1\r\n" + host + host + "\r\n",
	"an empty host and one":    "GET / HTTP/1.1\r\nHost:\r\n" + host + "\r\n",
	"malformed host":           "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
	"line feeds only":          "GET / HTTP/1.1\nHost: a.test\n\n",
	"a bare carriage return":   "GET / HTTP/1.1\r\n" + host + "A: b\rc\r\n\r\n",
	"a bare line feed":         "GET / HTTP/1.1\r\n" + host + "A: b\nC: d\r\n\r\n",
	"continued line":           "GET / HTTP/1.1\r\n" + host + "A: b\r\n c\r\n\r\n",
	"space before the colon":   "GET / HTTP/1.1\r\n" + host + "A : b\r\n\r\n",
	"no colon":                 "GET / HTTP/1.1\r\n" + host + "A\r\n\r\n",
	"zero byte":                "GET / HTTP/1.1\r\n" + host + "A: \x00\r\n\r\n",
	"close":                    "GET / HTTP/1.1\r\n" + host + "Connection: close\r\n\r\n",
	"named by Connection":      "GET / HTTP/1.1\r\n" + host + "Connection: keep-alive, x-a\r\nX-A: b\r\n\r\n",
	"upgrade":                  "GET / HTTP/1.1\r\n" + host + "Upgrade: websocket\r\n\r\n",
	"chunked":                  "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"expect":                   "POST / HTTP/1.1\r\n" + host + "Expect: 100-continue\r\nContent-Length: 0\r\n\r\n",
	"trailers":                 "GET / HTTP/1.1\r\n" + host + "TE: trailers\r\n\r\n",
	"proxy's credentials":      "GET / HTTP/1.1\r\n" + host + "Proxy-Authorization: a\r\n\r\n",
	"two lengths":              "POST / HTTP/1.1\r\n" + host + "Content-Length: 1\r\nContent-Length: 1\r\n\r\na",
	"list of lengths":          "POST / HTTP/1.1\r\n" + host + "Content-Length: 1, 1\r\n\r\na",
	"length with a sign":       "POST / HTTP/1.1\r\n" + host + "Content-Length: +1\r\n\r\na",
	"length with a zero":       "POST / HTTP/1.1\r\n" + host + "Content-Length: 01\r\n\r\na",
	"part of a body":           "POST / HTTP/1.1\r\n" + host + "Content-Length: 2\r\n\r\na",
	"more than the body":       "POST / HTTP/1.1\r\n" + host + "Content-Length: 1\r\n\r\nab",
	"a second request":         "GET / HTTP/1.1\r\n" + host + "\r\nGET / HTTP/1.1\r\n" + host + "\r\n",
	"a body without length":    "POST / HTTP/1.1\r\n" + host + "\r\na",
	"length of a signed range": "POST / HTTP/1.1\r\n" + host + "Content-Length: 9223372036854775808\r\n\r\n",
}

func TestRequestsLeft(t *testing.T) {
	for name, text := range requestsLeft {
		if r := (Request{}); r.Parse([]byte(text)) {
			t.Errorf("%s: plain: %+v", name, r)
		}
	}
}

// FuzzRequest holds the parser against that of net/http: what is plain means the same there.
func FuzzRequest(f *testing.F) {
	for _, text := range requestsLeft {
		f.Add([]byte(text))
	}
	f.Add([]byte("PUT /s/a/%2e/?q HTTP/1.1\r\n" + host + "A: b\r\na:\r\nContent-Length: 1\r\n\r\nx"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Request
		if !r.Parse(b) {
			return
		}
		in := bufio.NewReader(bytes.NewReader(b))
		std, err := http.ReadRequest(in)
		if err != nil {
			t.Fatalf("net/http refuses %q: %v", b, err)
		}
		query := ""
		if std.URL.RawQuery != "" || std.URL.ForceQuery {
			query = "?" + std.URL.RawQuery
		}
		if r.Method != std.Method || r.Path != std.URL.EscapedPath() || r.Query != query || r.Host != std.Host || std.Close {
			t.Errorf("%+v, net/http reads %+v", r, std)
		}
		compareFields(t, r.Fields, std.Header, "Connection", "Keep-Alive", "Forwarded")
		body, err := io.ReadAll(std.Body)
		if err != nil || !bytes.Equal(body, r.Body) {
			t.Errorf("body %q, net/http reads %q, %v", r.Body, body, err)
		}
		if rest, _ := in.Peek(1); len(rest) > 0 {
			t.Errorf("%q is left", rest)
		}
	})
}

// compareFields holds fields against the header of net/http, in which fields that are left out
// may be.
func compareFields(t *testing.T, fields []Field, std http.Header, leftOut ...string) {
	t.Helper()
	got := http.Header{}
	for _, f := range fields {
		got.Add(f.Name, f.Value)
	}
	for name, values := range std {
		if !slices.Contains(leftOut, name) && !slices.Equal(got[name], values) {
			t.Errorf("%s: %q, net/http reads %q", name, got[name], values)
		}
	}
	for name := range got {
		if _, ok := std[name]; !ok && name != "Content-Length" && name != "Transfer-Encoding" { // net/http keeps them elsewhere
			t.Errorf("net/http has no %s", name)
		}
	}
}
