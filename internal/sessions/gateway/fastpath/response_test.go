package fastpath

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"slices"
	"testing"
)

const (
	status = "HTTP/1.1 200 OK\r\nDate: now\r\n"
	typed  = status + "Content-Type: text/plain\r\n"
)

func TestResponse(t *testing.T) {
	for name, c := range map[string]struct {
		text  string
		body  int64
		reuse bool
	}{
		"whole":                 {typed + "Content-Length: 2\r\n\r\nok", 2, true},
		"header only":           {typed + "Content-Length: 2\r\n\r\n", 2, true},
		"part":                  {typed + "content-length: 9\r\n\r\nok", 9, true},
		"no body":               {status + "Content-Length: 0\r\nConnection: Keep-Alive\r\nKeep-Alive: 5\r\n\r\n", 0, true},
		"closes its connection": {typed + "Content-Length: 2\r\nconnection: Close\r\n\r\nok", 2, false},
		"chunks":                {typed + "Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\na\r\n0123456789\r\n0\r\n\r\n", 27, true},
		"no chunk":              {typed + "Transfer-Encoding: Chunked\r\n\r\n0\r\n\r\n", 5, true},
		"204":                   {"HTTP/1.1 204 No Content\r\nDate: now\r\n\r\n", 0, true},
		"304":                   {"HTTP/1.1 304 Not Modified\r\nDate: now\r\nContent-Length: 5\r\n\r\n", 0, true},
		"no reason":             {"HTTP/1.1 404 \r\nDate: now\r\nContent-Length: 0\r\n\r\n", 0, true},
	} {
		var r Response
		if !r.Parse([]byte(c.text)) || r.Body != c.body || r.Reuse != c.reuse {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func TestFieldsOfResponses(t *testing.T) {
	var r Response
	if !r.Parse([]byte(status + "location: /a\r\nSet-Cookie: a\r\nConnection: close\r\nset-cookie: b\r\nContent-Length: 0\r\n\r\n")) {
		t.Fatal("not plain")
	}
	want := []Field{{"Date", "now", Other}, {"location", "/a", Location}, {"Set-Cookie", "a", SetCookie}, {"set-cookie", "b", SetCookie}, {"Content-Length", "0", Other}}
	if !slices.Equal(r.Fields, want) {
		t.Errorf("%+v", r.Fields)
	}
}

// responsesLeft are responses that net/http gets.
var responsesLeft = map[string]string{
	"empty":                    "",
	"part of a header":         status,
	"HTTP/1.0":                 "HTTP/1.0 200 OK\r\nDate: now\r\nContent-Length: 0\r\n\r\n",
	"interim":                  "HTTP/1.1 103 Early Hints\r\nDate: now\r\n\r\n",
	"switches protocols":       "HTTP/1.1 101 Switching Protocols\r\nDate: now\r\nUpgrade: x\r\n\r\n",
	"four digits":              "HTTP/1.1 2000 OK\r\nDate: now\r\nContent-Length: 0\r\n\r\n",
	"status with a sign":       "HTTP/1.1 +20 OK\r\nDate: now\r\nContent-Length: 0\r\n\r\n",
	"reason with a line feed":  "HTTP/1.1 200 a\nb\r\nDate: now\r\nContent-Length: 0\r\n\r\n",
	"no date":                  "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
	"no type":                  status + "Content-Length: 2\r\n\r\nok",
	"until the end":            typed + "\r\nok",
	"too long":                 typed + "Content-Length: 1\r\n\r\nok",
	"two lengths":              typed + "Content-Length: 2\r\nContent-Length: 2\r\n\r\nok",
	"length and chunks":        typed + "Content-Length: 12\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
	"two encodings":            typed + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
	"part of a chunk":          typed + "Transfer-Encoding: chunked\r\n\r\n2\r\no",
	"no last chunk":            typed + "Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
	"extension of a chunk":     typed + "Transfer-Encoding: chunked\r\n\r\n2;a=b\r\nok\r\n0\r\n\r\n",
	"trailer":                  typed + "Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nA: b\r\n\r\n",
	"announced trailer":        typed + "Trailer: A\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"more than the last chunk": typed + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nx",
	"chunk of negative size":   typed + "Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n0\r\n\r\n",
	"chunk that ends late":     typed + "Transfer-Encoding: chunked\r\n\r\n1\r\nok\r\n0\r\n\r\n",
	"204 with a body":          "HTTP/1.1 204 No Content\r\nDate: now\r\nContent-Length: 2\r\n\r\nok",
	"304 with a body":          "HTTP/1.1 304 Not Modified\r\nDate: now\r\nContent-Length: 2\r\n\r\nok",
	"continued line":           typed + "A: b\r\n c\r\nContent-Length: 0\r\n\r\n",
	"named by Connection":      typed + "Connection: a\r\nA: b\r\nContent-Length: 0\r\n\r\n",
	"closes and does not":      typed + "Connection: close\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n",
	"asks for credentials":     typed + "Proxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n",
}

func TestResponsesLeft(t *testing.T) {
	for name, text := range responsesLeft {
		if r := (Response{}); r.Parse([]byte(text)) {
			t.Errorf("%s: plain: %+v", name, r)
		}
	}
}

// FuzzResponse holds the parser against that of net/http.
func FuzzResponse(f *testing.F) {
	for _, text := range responsesLeft {
		f.Add([]byte(text))
	}
	f.Add([]byte(typed + "A: b\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Response
		if !r.Parse(b) {
			return
		}
		// What has not arrived of the body does not matter.
		missing := bytes.Repeat([]byte("x"), int(min(r.Body-int64(len(b)-r.Length), 1<<16)))
		in := bufio.NewReader(io.MultiReader(bytes.NewReader(b), bytes.NewReader(missing)))
		std, err := http.ReadResponse(in, &http.Request{Method: "GET"})
		if err != nil {
			t.Fatalf("net/http refuses %q: %v", b, err)
		}
		if r.Status != std.StatusCode || r.Reuse == std.Close {
			t.Errorf("%+v, net/http reads %+v", r, std)
		}
		compareFields(t, r.Fields, std.Header, "Connection", "Keep-Alive")
		if r.Body > 1<<16 {
			return
		}
		if _, err := io.Copy(io.Discard, std.Body); err != nil {
			t.Errorf("the body of %q: %v", b, err)
		}
		if rest, _ := in.Peek(1); len(rest) > 0 {
			t.Errorf("%q is left", rest)
		}
		if len(std.Trailer) > 0 {
			t.Errorf("net/http reads the trailer %v", std.Trailer)
		}
	})
}
