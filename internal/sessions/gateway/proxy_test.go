package gateway

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/test/poll"
	"holdfast/test/serve"
)

// Only the gateway sets the headers that describe the client.
func TestGatewaySetsForwardedHeaders(t *testing.T) {
	seen := make(chan http.Header, 1)
	f := start(t, func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header }, nil)
	req := f.request("GET", "/s/alice/x", nil,
		"X-Forwarded-For", "6.6.6.6", "X-Forwarded-Host", "evil", "X-Forwarded-Proto", "gopher", "X-Forwarded-Prefix", "/evil",
		"X-Forwarded-Port", "1", "X-Real-Ip", "6.6.6.6", "Forwarded", "for=6.6.6.6", "X-Holdfast-Hop", "1",
		"Te", "trailers", "Connection", "X-Drop", "X-Drop", "1", "X-Keep", "2", "User-Agent", "")
	req.Host = "gw.test"
	f.do(req)
	want := http.Header{
		"X-Forwarded-For": {"127.0.0.1"}, "X-Forwarded-Host": {"gw.test"}, "X-Forwarded-Proto": {"http"},
		"X-Forwarded-Prefix": {"/s/alice"}, "X-Keep": {"2"}, "Te": {"trailers"},
	}
	if diff := cmp.Diff(want, <-seen); diff != "" {
		t.Error(diff)
	}
}

// Redirects and cookies of a server that does not know its prefix get the prefix.
func TestResponsesStayBelowThePrefix(t *testing.T) {
	f := start(t, func(w http.ResponseWriter, r *http.Request) {
		if loc := r.URL.Query().Get("to"); loc != "" {
			w.Header()["Location"] = []string{loc}
		}
		if c := r.URL.Query().Get("set"); c != "" {
			w.Header().Set("Set-Cookie", c)
		}
		w.WriteHeader(302)
	}, func(c *Config) { c.Domain, c.Paths = "sessions.test", true })
	byHost := "alice.sessions.test"
	for _, c := range []struct{ host, to, want string }{
		{"gw.test", "/login?x", "/s/alice/login?x"},
		{"gw.test", "/s/alice/login", "/s/alice/login"},
		{"gw.test", "login", "login"},
		{"gw.test", "http://gw.test/login", "http://gw.test/s/alice/login"},
		{"gw.test", "http://gw.test", "http://gw.test/s/alice"},
		{"gw.test", "http://gw.test.evil/login", "http://gw.test.evil/login"},
		{"gw.test", "https://other.test/", "https://other.test/"},
		{"gw.test", "//other.test/", "//other.test/"},
		{byHost, "/login", "/login"},
	} {
		req := f.request("GET", "/s/alice/", nil)
		req.Host = c.host
		req.URL.RawQuery = "to=" + strings.NewReplacer("?", "%3F", ":", "%3A").Replace(c.to)
		if resp, _ := f.do(req); resp.Header.Get("Location") != c.want {
			t.Errorf("%s at %s: got %q, want %q", c.to, c.host, resp.Header.Get("Location"), c.want)
		}
	}
	for _, c := range []struct{ host, set, want string }{
		{"gw.test", "a=b; Path=/; HttpOnly", "a=b; Path=/s/alice/; HttpOnly"},
		{"gw.test", "a=b; path=/s/alice/x", "a=b; Path=/s/alice/x"},
		{"gw.test", "a=b", "a=b"},
		{byHost, "a=b; Domain=.sessions.test; Path=/", "a=b; Path=/"},
	} {
		req := f.request("GET", "/s/alice/", nil)
		req.Host = c.host
		req.URL.RawQuery = "set=" + strings.NewReplacer(";", "%3B", " ", "%20", "=", "%3D").Replace(c.set)
		if resp, _ := f.do(req); resp.Header.Get("Set-Cookie") != c.want {
			t.Errorf("%s at %s: got %q, want %q", c.set, c.host, resp.Header.Get("Set-Cookie"), c.want)
		}
	}
}

// An event stream arrives event by event: the server sends each event only after the
// client has acknowledged the previous one.
func TestEventStreamIsNotBuffered(t *testing.T) {
	acks := make(chan struct{})
	f := start(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 5 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			http.NewResponseController(w).Flush()
			select {
			case <-acks:
			case <-r.Context().Done():
				return
			}
		}
	}, nil)
	resp, err := f.client.Do(f.request("GET", "/s/alice/", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	br := bufio.NewReader(resp.Body)
	for i := range 5 {
		line, err := br.ReadString('\n')
		if want := fmt.Sprintf("data: %d\n", i); err != nil || line != want {
			t.Fatalf("got %q, %v", line, err)
		}
		br.ReadString('\n')
		acks <- struct{}{}
	}
}

// Request bodies stream, too: the answer to the first part comes before the
// second is sent.
func TestBothDirectionsStreamAtOnce(t *testing.T) {
	f := start(t, func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		rc.EnableFullDuplex()
		for buf := make([]byte, 4); ; rc.Flush() {
			if _, err := io.ReadFull(r.Body, buf); err != nil {
				return
			}
			w.Write(buf)
		}
	}, nil)
	pr, pw := io.Pipe()
	defer pw.Close()
	go io.WriteString(pw, "ping") // the response's head waits for the server's first byte
	resp, err := f.client.Do(f.request("POST", "/s/alice/", pr))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	buf := make([]byte, 4)
	for i := range 3 {
		if _, err := io.ReadFull(resp.Body, buf); err != nil || string(buf) != "ping" {
			t.Fatalf("round %d: %q, %v", i, buf, err)
		}
		io.WriteString(pw, "ping")
	}
	pw.Close()
	if rest, err := io.ReadAll(resp.Body); err != nil || string(rest) != "ping" {
		t.Errorf("rest %q, %v", rest, err)
	}
}

func TestTrailersAndInterimResponses(t *testing.T) {
	f := start(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Trailer", "X-Sum")
		io.WriteString(w, "body of "+r.Trailer.Get("X-Client"))
		w.Header().Set("X-Sum", "42")
		w.Header().Set(http.TrailerPrefix+"X-Late", "43")
	}, nil)
	req := f.request("POST", "/s/alice/", io.NopCloser(strings.NewReader("abc")))
	req.Trailer = http.Header{"X-Client": {"trailing"}}
	var hints []string
	req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			hints = append(hints, fmt.Sprint(code, h.Get("Link")))
			return nil
		},
	}))
	resp, body := f.do(req)
	if body != "body of trailing" || resp.Trailer.Get("X-Sum") != "42" || resp.Trailer.Get("X-Late") != "43" {
		t.Errorf("%q, trailers %v", body, resp.Trailer)
	}
	if len(hints) != 1 || !strings.Contains(hints[0], "style.css") {
		t.Errorf("hints %q", hints)
	}
}

func TestHeadHasNoBody(t *testing.T) {
	f := start(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "1234") }, nil)
	resp, body := f.do(f.request("HEAD", "/s/alice/", nil))
	if resp.ContentLength != 1234 || body != "" {
		t.Errorf("length %d, body %q", resp.ContentLength, body)
	}
}

// A client that expects 100 Continue receives it from the server, not before.
func TestExpectContinue(t *testing.T) {
	f := start(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/no" {
			w.WriteHeader(401)
			return
		}
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "got %s", b)
	}, nil)
	const head = "POST /s/alice/%s HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
	if _, _, resp := f.raw(fmt.Sprintf(head, "no")); resp.StatusCode != 401 {
		t.Errorf("refused: %s", resp.Status)
	}
	c, br, resp := f.raw(fmt.Sprintf(head, "yes"))
	if resp.StatusCode != 100 {
		t.Fatalf("first answer: %s", resp.Status)
	}
	io.WriteString(c, "body")
	resp, err := http.ReadResponse(br, nil)
	for err == nil && resp.StatusCode == 100 { // the proxy may repeat it
		resp, err = http.ReadResponse(br, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := io.ReadAll(resp.Body); string(b) != "got body" {
		t.Errorf("got %s %q", resp.Status, b)
	}
}

func TestTooLarge(t *testing.T) {
	f := start(t, func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			panic(http.ErrAbortHandler)
		}
	}, func(c *Config) { c.MaxBodyBytes, c.MaxHeaderBytes = 1000, 8192 })
	big := strings.Repeat("x", 100_000)
	if resp, _ := f.do(f.request("POST", "/s/alice/", strings.NewReader(big[:1000]))); resp.StatusCode != 200 {
		t.Errorf("at the bound: %s", resp.Status)
	}
	if resp, _ := f.do(f.request("POST", "/s/alice/", strings.NewReader(big[:1001]))); resp.StatusCode != 413 {
		t.Errorf("announced: %s", resp.Status)
	}
	c := f.dial()
	go fmt.Fprintf(c, "POST /s/alice/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", 5000, big[:5000])
	if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || resp.StatusCode != 413 {
		t.Errorf("chunked: %v, %v", resp, err)
	}
	if resp, _ := f.get("/s/alice/", "X-Big", big); resp.StatusCode != 431 {
		t.Errorf("header: %s", resp.Status)
	}
}

// A client that does not finish its header is cut off.
func TestSlowHeaderIsCutOff(t *testing.T) {
	f := start(t, nil, func(c *Config) { c.HeaderTimeout = 50 * time.Millisecond })
	c := f.dial()
	io.WriteString(c, "GET /s/alice/ HTTP/1.1\r\nHost:")
	if b, err := io.ReadAll(c); err != nil || strings.Contains(string(b), "200") {
		t.Errorf("got %q, %v", b, err)
	}
}

func TestServerDies(t *testing.T) {
	f := start(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/after" {
			io.WriteString(w, "half")
			http.NewResponseController(w).Flush()
		}
		panic(http.ErrAbortHandler)
	}, nil)
	if resp, body := f.do(f.request("POST", "/s/alice/before", strings.NewReader("x"), "Accept", "application/json")); resp.StatusCode != 502 || !strings.Contains(body, `"upstream"`) {
		t.Errorf("before a byte: %s %s", resp.Status, body)
	}
	resp, err := f.client.Do(f.request("GET", "/s/alice/after", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); string(b) != "half" || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("after some bytes: %q, %v; the client has to see that the answer is incomplete", b, err)
	}
}

func TestServerDoesNotAnswer(t *testing.T) {
	f := start(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		func(c *Config) { c.ResponseTimeout = 50 * time.Millisecond })
	for _, header := range [][]string{nil, {"Connection", "Upgrade", "Upgrade", "any"}} {
		if resp, body := f.get("/s/alice/", header...); resp.StatusCode != 504 {
			t.Errorf("%v: %s %s", header, resp.Status, body)
		}
	}
}

func TestHTTP2OverTLS(t *testing.T) {
	cert, key := certificate(t)
	f := start(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s", r.Header.Get("X-Forwarded-Proto"), r.URL.Path)
	}, func(c *Config) { c.CertFile, c.KeyFile = cert, key })
	f.client.Transport.(*http.Transport).ForceAttemptHTTP2 = true
	req := f.request("GET", "/s/alice/x", nil)
	req.URL.Scheme = "https"
	resp, body := f.do(req)
	if resp.ProtoMajor != 2 || body != "https /x" {
		t.Errorf("%s: %q", resp.Proto, body)
	}
}

// certificate writes a self-signed certificate for the test.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	priv, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(crand.Reader, tmpl, tmpl, priv.Public(), priv)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(priv)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// A request in progress is finished when the gateway stops.
func TestStopLetsRequestsFinish(t *testing.T) {
	begun, finish := make(chan struct{}), make(chan struct{})
	f := start(t, func(w http.ResponseWriter, _ *http.Request) {
		close(begun)
		<-finish
		io.WriteString(w, "whole")
	}, nil)
	got := make(chan string, 1)
	go func() {
		resp, err := f.client.Do(f.request("GET", "/s/alice/", nil))
		if err != nil {
			got <- err.Error()
			return
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		got <- string(b)
	}()
	<-begun
	go func() {
		poll.Until(t, "the gateway is stopping", f.gateway.stopping.Load)
		close(finish)
	}()
	f.stop()
	if s := <-got; s != "whole" {
		t.Errorf("got %q", s)
	}
}

// A request that is read while the gateway ends is served, unless it asks for another protocol: that
// connection could not stay. After the end there is no service.
func TestStopServesWhatHasArrived(t *testing.T) {
	f := start(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "served") }, nil)
	f.gateway.stopping.Store(true)
	if resp, body := f.get("/s/alice/"); resp.StatusCode != http.StatusOK || body != "served" {
		t.Errorf("%s: %s", resp.Status, body)
	}
	resp, body := f.do(f.request("GET", "/s/alice/", nil, "Connection", "Upgrade", "Upgrade", "websocket"))
	if resp.StatusCode != http.StatusServiceUnavailable || !resp.Close {
		t.Errorf("an upgrade: %s, close %v: %s", resp.Status, resp.Close, body)
	}
	f.stop()
	w := httptest.NewRecorder()
	f.gateway.ServeHTTP(w, httptest.NewRequest("GET", "/s/alice/", nil))
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("after the end: %d", w.Code)
	}
}

// A complete request in the connection is read when the gateway ends, and net/http gets it before it
// shuts down.
func TestLastLook(t *testing.T) {
	client, server := serve.Pair(t)
	f := newFront(&Gateway{}, httptest.NewUnstartedServer(nil).Listener)
	c := &fastConn{front: f, raw: server, conn: server, in: make([]byte, firstRead)}
	io.WriteString(client, "GET / HTTP/1.1\r\n\r\n")
	f.closing.Store(true)
	n, err := c.next(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	given := make(chan struct{})
	go func() {
		c.giveTo(nil, c.in[:n])
		close(given)
	}()
	handed, err := f.Accept()
	if err != nil {
		t.Fatal(err)
	}
	<-given
	over := make(chan struct{})
	go func() {
		f.shutdown(t.Context())
		close(over)
	}()
	select {
	case <-over:
		t.Error("net/http is shut down before it has read the request")
	case <-time.After(50 * time.Millisecond):
	}
	handed.(*handedConn).take()
	<-over
	if _, err := c.next(time.Minute); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("without a request: %v; want the end of the wait", err)
	}
}

// A request that does not finish is cut off after the stop timeout.
func TestStopCutsOffTheRest(t *testing.T) {
	begun := make(chan struct{})
	f := start(t, func(_ http.ResponseWriter, r *http.Request) {
		close(begun)
		<-r.Context().Done()
	}, func(c *Config) { c.StopTimeout = 50 * time.Millisecond })
	errs := make(chan error, 1)
	go func() {
		resp, err := f.client.Do(f.request("GET", "/s/alice/", nil))
		if err == nil {
			resp.Body.Close()
		}
		errs <- err
	}()
	<-begun
	f.stop() // the test is that it returns
	<-errs
}
