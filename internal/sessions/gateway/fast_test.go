package gateway

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/sessions/gateway/upstream"
	"holdfast/test/poll"
	"holdfast/test/serve"
)

const plainHead = "HTTP/1.1 200 OK\r\nDate: now\r\nContent-Type: text/plain\r\n"

// startRaw runs a gateway whose session's server calls handle with each request it receives,
// as it was sent. A server that returns false closes the connection.
func startRaw(t *testing.T, handle func(c net.Conn, request string) bool, change func(*Config)) *fixture {
	t.Helper()
	f := start(t, nil, change)
	f.serveAt(serve.TCP(t, func(c net.Conn) {
		in := bufio.NewReader(c)
		for {
			request := ""
			for !strings.HasSuffix(request, "\r\n\r\n") {
				line, err := in.ReadString('\n')
				if err != nil {
					return
				}
				request += line
			}
			if _, length, ok := strings.Cut(request, "Content-Length: "); ok {
				n := 0
				fmt.Sscan(length, &n)
				body := make([]byte, n)
				if _, err := io.ReadFull(in, body); err != nil {
					return
				}
				request += string(body)
			}
			if strings.Contains(request, "Transfer-Encoding: chunked") {
				body := ""
				for !strings.HasSuffix(body, "0\r\n\r\n") {
					line, err := in.ReadString('\n')
					if err != nil {
						return
					}
					body += line
				}
			}
			if !handle(c, request) {
				return
			}
		}
	}))
	return f
}

// isFast reports whether a request came by the fast path, which keeps the spelling of names.
func isFast(request string) bool { return strings.Contains(request, "\r\nx-spelling: ") }

func plainRequest(method, path, more string) string {
	return method + " " + path + " HTTP/1.1\r\nHost: sessions.test\r\nx-spelling: kept\r\n" + more + "\r\n"
}

// exchangeRaw sends a request on a connection and returns the response and its body.
func exchangeRaw(t *testing.T, c net.Conn, in *bufio.Reader, request string) (*http.Response, string) {
	t.Helper()
	io.WriteString(c, request)
	resp, err := upstream.ReadResponse(in, nil, func(*http.Response) {})
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(text)
}

// The server of a session receives a plain request as the client wrote it, and the gateway's
// own fields.
func TestPlainRequest(t *testing.T) {
	got := make(chan string, 1)
	f := startRaw(t, func(c net.Conn, request string) bool {
		got <- request
		io.WriteString(c, plainHead+"Location: /x\r\nset-cookie: a=b; Path=/; Domain=sessions.test\r\nx-holdfast-failed: left\r\nContent-Length: 2\r\n\r\nok")
		return true
	}, nil)
	c := f.dial()
	in := bufio.NewReader(c)
	for range 3 {
		resp, body := exchangeRaw(t, c, in, plainRequest("POST", "/s/alice/a?b=c", "x-forwarded-for: 1.2.3.4\r\nX_Real_IP: 1.2.3.4\r\nX-Holdfast-Epoch: 9\r\n"+
			"Cookie: a=b; holdfast_login=secret\r\nContent-Length: 4\r\n")+"body")
		if resp.StatusCode != 200 || body != "ok" || resp.Header.Get("Location") != "/s/alice/x" || resp.Header.Get("Set-Cookie") != "a=b; Path=/s/alice/" ||
			resp.Header.Get("X-Holdfast-Failed") != "" {
			t.Errorf("%d %q %v", resp.StatusCode, body, resp.Header)
		}
		want := "POST /a?b=c HTTP/1.1\r\nHost: sessions.test\r\nx-spelling: kept\r\nContent-Length: 4\r\nCookie: a=b\r\n" +
			"X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Host: sessions.test\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Prefix: /s/alice\r\n\r\nbody"
		if request := <-got; request != want {
			t.Errorf("the server received %q, want %q", request, want)
		}
	}
}

// Each connection begins with a plain request. The next one is served, too, whether it is
// plain or not, and whatever the response is.
func TestAfterPlainRequests(t *testing.T) {
	get := plainRequest("GET", "/s/alice/", "")
	whole := plainHead + "Content-Length: 2\r\n\r\nok"
	chunked := plainHead + "Transfer-Encoding: chunked\r\n\r\n"
	for name, c := range map[string]struct {
		request  string
		response []string // with pauses between the parts
		fast     bool
		want     string
	}{
		"plain":             {get, []string{whole}, true, "ok"},
		"header and body":   {get, []string{plainHead + "Content-Length: 2\r\n\r\n", "o", "k"}, true, "ok"},
		"chunks":            {get, []string{chunked + "2\r\nok\r\n0\r\n\r\n"}, true, "ok"},
		"late chunks":       {get, []string{chunked + "1\r\no\r\n", "1\r\nk\r\n0\r\n\r\n"}, true, "ok"},
		"parts of a header": {get, []string{whole[:20], whole[20:]}, true, "ok"},
		"interim":           {get, []string{"HTTP/1.1 102 Processing\r\n\r\n" + whole}, true, "ok"},
		"no date":           {get, []string{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"}, true, "ok"},
		"until the end":     {get, []string{plainHead + "Connection: close\r\n\r\nok"}, true, "ok"},
		"closes":            {get, []string{plainHead + "Connection: close\r\nContent-Length: 2\r\n\r\nok"}, true, "ok"},
		"trailing bytes":    {get, []string{whole + "HTTP/1.1 200 OK\r\n\r\n"}, true, "ok"},
		"slow":              {get, []string{"", whole}, true, "ok"},
		"HTTP/1.0":          {strings.Replace(get, "1.1", "1.0", 1), []string{whole}, false, "ok"},
		"chunked request":   {plainRequest("POST", "/s/alice/", "Transfer-Encoding: chunked\r\n") + "0\r\n\r\n", []string{whole}, false, "ok"},
		"bad request":       {plainRequest("GET", "/s/alice/", "A : b\r\n"), nil, false, "400 Bad Request"},
		"unknown path":      {plainRequest("GET", "/x", ""), nil, false, "nothing is served here"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int32
			f := startRaw(t, func(conn net.Conn, request string) bool {
				if requests.Add(1) == 1 {
					io.WriteString(conn, whole)
					return isFast(request)
				}
				if isFast(request) != c.fast {
					t.Errorf("fast is %v: %q", isFast(request), request)
				}
				pause := 10 * time.Millisecond
				if c.response[0] == "" {
					pause = fastWait + fastWait/2
				}
				for i, part := range c.response {
					if i > 0 {
						time.Sleep(pause)
					}
					io.WriteString(conn, part)
				}
				return !strings.Contains(c.response[0], "close")
			}, nil)
			client := f.dial()
			in := bufio.NewReader(client)
			exchangeRaw(t, client, in, get)
			if _, body := exchangeRaw(t, client, in, c.request); !strings.Contains(body, c.want) {
				t.Errorf("%q, want %q", body, c.want)
			}
			if n := requests.Load(); c.response != nil && n != 2 {
				t.Errorf("the server received %d requests", n)
			}
		})
	}
}

// Two requests that arrive at once are both answered.
func TestPipelinedRequests(t *testing.T) {
	f := startRaw(t, func(c net.Conn, request string) bool {
		fmt.Fprintf(c, plainHead+"Content-Length: 2\r\n\r\n%.2s", strings.TrimPrefix(request, "GET /"))
		return true
	}, nil)
	c := f.dial()
	in := bufio.NewReader(c)
	io.WriteString(c, plainRequest("GET", "/s/alice/1", ""))
	for i, request := range []string{plainRequest("GET", "/s/alice/2", "") + plainRequest("GET", "/s/alice/3", ""), "", ""} {
		if _, body := exchangeRaw(t, c, in, request); body != fmt.Sprintf("%d ", i+1) {
			t.Errorf("answer %d is %q", i+1, body)
		}
	}
}

// A body that is longer than any buffer arrives whole, also if its server pauses for longer
// than the fast path waits for a header.
func TestLongBody(t *testing.T) {
	want := make([]byte, 1<<20)
	_, _ = rand.Read(want) // never fails
	f := startRaw(t, func(c net.Conn, request string) bool {
		if !isFast(request) {
			t.Error("not by the fast path")
		}
		fmt.Fprintf(c, plainHead+"Content-Length: %d\r\n\r\n%s", len(want), want[:100<<10])
		time.Sleep(fastWait + fastWait/2)
		_, _ = c.Write(want[100<<10:]) // the client compares what it gets
		return true
	}, nil)
	c := f.dial()
	if _, body := exchangeRaw(t, c, bufio.NewReader(c), plainRequest("GET", "/s/alice/", "")); !bytes.Equal([]byte(body), want) {
		t.Errorf("%d bytes, not those that were sent", len(body))
	}
}

// A request that the server has received is not sent again when the server breaks off, and
// the client gets an error.
func TestPlainRequestBreaksOff(t *testing.T) {
	for name, answer := range map[string]string{"nothing": "", "part of a header": plainHead} {
		var requests atomic.Int32
		f := startRaw(t, func(c net.Conn, _ string) bool {
			requests.Add(1)
			io.WriteString(c, answer)
			return false
		}, nil)
		c := f.dial()
		resp, _ := exchangeRaw(t, c, bufio.NewReader(c), plainRequest("POST", "/s/alice/", "Content-Length: 1\r\n")+"x")
		if resp.StatusCode != http.StatusBadGateway || requests.Load() != 1 {
			t.Errorf("%s: %s after %d requests", name, resp.Status, requests.Load())
		}
	}
}

// A body that breaks off is not taken for a whole one.
func TestPlainBodyBreaksOff(t *testing.T) {
	f := startRaw(t, func(c net.Conn, _ string) bool {
		io.WriteString(c, plainHead+"Content-Length: 9\r\n\r\nhalf")
		return false
	}, nil)
	c := f.dial()
	io.WriteString(c, plainRequest("GET", "/s/alice/", ""))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(resp.Body); err == nil || string(body) != "half" {
		t.Errorf("%q, %v", body, err)
	}
}

// A client that hangs up while the server works or sends ends its request.
func TestPlainClientHangsUp(t *testing.T) {
	for name, begin := range map[string]string{"before the header": "", "inside the body": plainHead + "Content-Length: 9\r\n\r\nhalf"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			received, ended := make(chan bool), make(chan bool)
			f := startRaw(t, func(c net.Conn, _ string) bool {
				io.WriteString(c, begin)
				close(received)
				_, _ = io.Copy(io.Discard, c) // ends with the connection
				close(ended)
				return false
			}, nil)
			c := f.dial()
			io.WriteString(c, plainRequest("GET", "/s/alice/", ""))
			<-received
			c.Close()
			select {
			case <-ended:
			case <-time.After(patience):
				t.Fatal("the request does not end")
			}
			poll.Until(t, "the session is released", func() bool { held, _ := f.sessions.count(); return held == 0 })
		})
	}
}

// A gateway that stops waits for a plain request, also while net/http takes it over.
func TestStopDuringPlainRequest(t *testing.T) {
	received := make(chan bool)
	f := startRaw(t, func(c net.Conn, _ string) bool {
		close(received)
		time.Sleep(fastWait + fastWait/2)
		io.WriteString(c, plainHead+"Content-Length: 2\r\n\r\nok")
		return true
	}, nil)
	idle := f.dial() // it is accepted before c: the end of a listener resets what is not
	c := f.dial()
	io.WriteString(c, plainRequest("GET", "/s/alice/", ""))
	<-received
	f.stop()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "ok" {
		t.Errorf("%q, %v", body, err)
	}
	if _, err := idle.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("an idle connection ended with %v", err)
	}
}

// A client that sends nothing, or stops before its next request, is not kept for ever.
func TestIdleConnections(t *testing.T) {
	f := startRaw(t, func(c net.Conn, _ string) bool {
		io.WriteString(c, plainHead+"Content-Length: 2\r\n\r\nok")
		return true
	}, func(c *Config) { c.HeaderTimeout, c.IdleTimeout = 50*time.Millisecond, 50*time.Millisecond })
	silent, used := f.dial(), f.dial()
	exchangeRaw(t, used, bufio.NewReader(used), plainRequest("GET", "/s/alice/", ""))
	for _, c := range []net.Conn{silent, used} {
		if _, err := c.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("the connection ended with %v", err)
		}
	}
}

// A client that does not read its response is cut off, and counted.
func TestSlowReaderOfPlainResponse(t *testing.T) {
	f := startRaw(t, func(c net.Conn, _ string) bool {
		fmt.Fprintf(c, plainHead+"Content-Length: %d\r\n\r\n", 64<<20)
		_, err := c.Write(make([]byte, 64<<20))
		return err == nil
	}, func(c *Config) { c.WriteTimeout = 100 * time.Millisecond })
	c := f.dial()
	io.WriteString(c, plainRequest("GET", "/s/alice/", ""))
	poll.Until(t, "the client is cut off", func() bool { return valueOf(t, f.gateway.metrics.slowReaders) == 1 })
}
