package keep

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/bpf"
	"holdfast/internal/platform/linux/sockdiag"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A connection is between two requests if all that it received is answered.
func TestBetween(t *testing.T) {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	conn := func(sent, received int) sockdiag.Conn {
		return sockdiag.Conn{SegmentsSent: 1, HasReceived: true, SinceSent: ms(sent), SinceReceived: ms(received)}
	}
	for name, c := range map[string]struct {
		conn  sockdiag.Conn
		state bpf.GateState
		shut  time.Duration
		want  bool
	}{
		"answered long ago":           {conn(900, 905), bpf.GateState{}, 0, true},
		"answered just now":           {conn(20, 25), bpf.GateState{}, ms(900), false},
		"a request came in":           {conn(900, 300), bpf.GateState{}, ms(900), false},
		"never answered":              {sockdiag.Conn{HasReceived: true, SinceReceived: ms(900)}, bpf.GateState{}, ms(900), false},
		"fresh":                       {sockdiag.Conn{}, bpf.GateState{}, ms(50), true},
		"fresh, the gate just closed": {sockdiag.Conn{}, bpf.GateState{}, ms(10), false},
		"seen and answered":           {conn(60, 60), bpf.GateState{Data: 1, DataAck: 10, Ack: 20}, 0, true},
		"seen and not answered":       {conn(60, 60), bpf.GateState{Data: 1, DataAck: 20, Ack: 20}, 0, false},
		"the numbers wrap":            {conn(60, 60), bpf.GateState{Data: 1, DataAck: 1<<32 - 5, Ack: 3}, 0, true},
	} {
		if got := between(c.conn, c.state, c.shut, ms(50)); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestBeginsRequest(t *testing.T) {
	for data, want := range map[string]bool{
		"GET / HTTP/1.1\r\n": true, "G": true, "M-SEARCH * HTTP/1.1": true, "PROPFIND /": true,
		"": true, " GET": false, "get /": false, "\x16\x03\x01": false, "\x81\x05hello": false, "*1\r\n$4\r\nPING": false,
		strings.Repeat("A", maxMethod): false,
	} {
		if got := beginsRequest([]byte(data)); got != want {
			t.Errorf("%q: %v", data, got)
		}
	}
}

// Ports with TLS, and those with another protocol, are recognised, also if a server with TLS
// answers a request in plain text with an error in HTTP.
func TestRecognise(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it waits for a silent server")
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	plain, secret := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	defer plain.Close()
	defer secret.Close()
	secret.Config.ErrorLog, plain.Config.ErrorLog = nil, nil
	redis := serve(t, func(c net.Conn) { _, _ = io.WriteString(c, "-ERR unknown command\r\n") })
	silent := serve(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	for addr, want := range map[string]protocol{
		plain.Listener.Addr().String(): http1, secret.Listener.Addr().String(): overTLS, redis: other, silent: other,
	} {
		got, err := recognise(t.Context(), func(ctx context.Context) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", addr)
		})
		if got != want || err != nil {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
}

// serve serves each connection once, and returns the address.
func serve(t *testing.T, f func(net.Conn)) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			f(c)
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-ended })
	return l.Addr().String()
}

// relayed returns a client's end of a connection that a relay has, as if its server had
// ended, and another server listens on its address now.
func relayed(t *testing.T, life time.Duration, h http.HandlerFunc) (client *net.TCPConn, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	old, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	f, err := old.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	old.Close()
	s := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute, DisableGeneralOptionsHandler: true}
	served := make(chan struct{})
	go func() { defer close(served); _ = s.Serve(l) }()
	signals, ended := make(chan os.Signal, 1), make(chan struct{})
	go func() { defer close(ended); newRelay(life).run([]*conn{{fd: fd}}, signals) }()
	t.Cleanup(func() {
		c.Close()
		<-ended
		s.Close()
		<-served
	})
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return c.(*net.TCPConn), func() { signals <- os.Interrupt }
}

// A request reaches the new server as it was sent, from the client's address, and the answer
// comes back as the server gave it. When the relay is to end, it says so in the next answer.
func TestRelayIsFaithful(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: the end of a connection takes a second")
	}
	seen := make(chan *http.Request, 10)
	c, _ := relayed(t, time.Second, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		seen <- r
		w.Header()["Date"], w.Header()["Content-Type"] = nil, nil
		w.WriteHeader(http.StatusTeapot)
	})
	r := bufio.NewReader(c)
	exchange := func(text string) *http.Response {
		t.Helper()
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		return resp
	}
	resp := exchange("PUT //a%2Fb;c?x=1;y&%zz HTTP/1.1\r\nHost: example.org\r\nX-Forwarded-For: 192.0.2.1\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 6\r\n\r\n")
	got := <-seen
	if got.RequestURI != "//a%2Fb;c?x=1;y&%zz" || got.Host != "example.org" || got.Header.Get("X-Forwarded-For") != "192.0.2.1" || got.Trailer.Get("X-Sum") != "6" {
		t.Errorf("the server saw %q, host %q, %v, %v", got.RequestURI, got.Host, got.Header, got.Trailer)
	}
	if _, ok := got.Header["User-Agent"]; ok {
		t.Error("a user agent was added")
	}
	if host, _, _ := net.SplitHostPort(got.RemoteAddr); host != "127.0.0.1" {
		t.Errorf("the server saw a client at %s", got.RemoteAddr)
	}
	if resp.StatusCode != http.StatusTeapot || resp.Close || len(resp.Header["Date"])+len(resp.Header["Content-Type"]) > 0 {
		t.Errorf("the client saw %d, %v", resp.StatusCode, resp.Header)
	}
	if resp := exchange("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n"); resp.StatusCode != http.StatusTeapot || (<-seen).RequestURI != "*" {
		t.Error("OPTIONS * did not reach the server")
	}
	for !exchange("GET / HTTP/1.1\r\nHost: x\r\n\r\n").Close { // until the relay is to end
		<-seen
	}
	if _, err := r.ReadByte(); err != io.EOF {
		t.Errorf("after the last answer: %v", err)
	}
}

// A client that sends requests before it has the answers gets all of them, also when the
// relay is to end.
func TestRelayAnswersPipelinedRequests(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: the end of a connection takes a second")
	}
	const life = time.Second
	c, _ := relayed(t, life, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.Path) })
	r := bufio.NewReader(c)
	for begun := time.Now(); time.Since(begun) < 3*life/2; {
		if _, err := io.WriteString(c, strings.Repeat("POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab", 5)); err != nil {
			t.Fatal(err)
		}
		for k := range 5 {
			resp, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatalf("answer %d: %v", k, err)
			}
			if b, err := io.ReadAll(resp.Body); string(b) != "/p" || err != nil {
				t.Fatalf("answer %d: %q, %v", k, b, err)
			}
		}
	}
	if _, err := r.ReadByte(); err != io.EOF {
		t.Errorf("an idle connection does not end: %v", err)
	}
}

// A signal ends an idle connection, and then the relay.
func TestRelayStops(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: the end of a connection takes a second")
	}
	c, stop := relayed(t, time.Minute, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "ok") })
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || resp.Close {
		t.Fatal(resp, err)
	}
	stop()
	if _, err := io.Copy(io.Discard, c); err != nil {
		t.Error(err)
	}
}

// A connection that turns out to speak another protocol ends without a byte.
func TestRelayEndsOtherProtocols(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: the end of a connection takes a second")
	}
	c, _ := relayed(t, time.Minute, func(http.ResponseWriter, *http.Request) { t.Error("a request") })
	if _, err := c.Write([]byte("\x81\x85abcdefghi")); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(c); len(b) > 0 || err != nil {
		t.Errorf("got %q, %v", b, err)
	}
}
