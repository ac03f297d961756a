package upstream

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/test/poll"
	"holdfast/test/serve"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is a deadline against hanging, not an expectation.
const patience = 20 * time.Second

// log is the Events of a request.
type log struct {
	reused   bool
	answered int
	interim  []int
}

func (l *log) Connected(_ *CountedConn, reused bool)  { l.reused = reused }
func (l *log) Answered()                              { l.answered++ }
func (l *log) Interim(status int, header http.Header) { l.interim = append(l.interim, status) }

// bench sends requests to one server.
type bench struct {
	t    *testing.T
	pool *Pool
	addr string
	log  log
}

// to returns a bench for a server that handles each connection with handle.
func to(t *testing.T, handle func(*bufio.Reader, net.Conn), change func(*Config)) *bench {
	t.Helper()
	cfg := Config{IdlePerKey: 2, IdleTotal: 3, IdleTime: time.Minute, ResponseTimeout: patience, ContinueTimeout: patience, MaxHeaderBytes: 4096}
	if change != nil {
		change(&cfg)
	}
	b := &bench{t: t, pool: New(cfg)}
	t.Cleanup(b.pool.Close)
	b.addr = serve.TCP(t, func(c net.Conn) { handle(bufio.NewReader(c), c) })
	return b
}

// send sends a request with a body, or without one if it is nil.
func (b *bench) send(ctx context.Context, body io.Reader, header ...string) (*http.Response, error) {
	b.t.Helper()
	req, err := http.NewRequestWithContext(ctx, "POST", "http://x/path", body)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, h := range header {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	b.log = log{}
	return b.pool.RoundTrip(req, Key{Address: b.addr}, func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", b.addr)
	}, &b.log)
}

// get sends a request without a body and returns the status and the body of the answer.
func (b *bench) get() string {
	b.t.Helper()
	resp, err := b.send(b.t.Context(), nil)
	if err != nil {
		return "error: " + err.Error()
	}
	return read(resp)
}

func read(resp *http.Response) string {
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Sprint(resp.StatusCode, " ", string(text), " error: ", err)
	}
	return fmt.Sprint(resp.StatusCode, " ", string(text))
}

// answers returns a server that reads each request whole and answers with the texts in
// turn, the last one again and again.
func answers(texts ...string) func(*bufio.Reader, net.Conn) {
	return func(in *bufio.Reader, c net.Conn) {
		for i := 0; ; i++ {
			req, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			io.Copy(io.Discard, req.Body)
			io.WriteString(c, texts[min(i, len(texts)-1)])
		}
	}
}

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

func TestConnectionsAreReused(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		want   string
		reused bool
	}{
		"length":          {ok, "200 ok", true},
		"no body":         {"HTTP/1.1 204 No Content\r\n\r\n", "204 ", true},
		"chunks":          {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", "200 ok", true},
		"close":           {"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", "200 ok", false},
		"more than asked": {ok + "HTTP/1.1 200 OK\r\n", "200 ok", false},
	} {
		t.Run(name, func(t *testing.T) {
			b := to(t, answers(c.answer), nil)
			for i := range 3 {
				if got := b.get(); got != c.want {
					t.Fatalf("answer %q, want %q", got, c.want)
				}
				if reused := i > 0 && c.reused; b.log.reused != reused || b.log.answered != 1 {
					t.Errorf("request %d: %+v, reused should be %v", i, b.log, reused)
				}
			}
		})
	}
}

// A connection that its server has closed meanwhile carries no request.
func TestClosedConnectionIsNotUsed(t *testing.T) {
	served := make(chan net.Conn, 10)
	b := to(t, func(in *bufio.Reader, c net.Conn) {
		served <- c
		answers(ok)(in, c)
	}, nil)
	if got := b.get(); got != "200 ok" {
		t.Fatal(got)
	}
	(<-served).(*net.TCPConn).CloseWrite()
	poll.Until(t, "the end of the connection has arrived", func() bool {
		b.pool.mu.Lock()
		defer b.pool.mu.Unlock()
		return !b.pool.idle[Key{Address: b.addr}][0].quiet()
	})
	if got := b.get(); got != "200 ok" || b.log.reused {
		t.Errorf("%s, %+v", got, b.log)
	}
}

// keptAfterBurst sends requests at once and returns how many connections are kept after
// them, with limits of two and three.
func keptAfterBurst(t *testing.T, b *bench) (kept func() int) {
	t.Helper()
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			req, _ := http.NewRequestWithContext(t.Context(), "GET", "http://x/", nil)
			resp, err := b.pool.RoundTrip(req, Key{Address: b.addr}, func(ctx context.Context) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "tcp", b.addr)
			}, &log{})
			if err != nil {
				t.Error(err)
				return
			}
			read(resp)
		})
	}
	all.Wait()
	kept = func() int {
		b.pool.mu.Lock()
		defer b.pool.mu.Unlock()
		return b.pool.total
	}
	if n := kept(); n > 3 {
		t.Errorf("%d connections are kept, the limit is 3", n)
	}
	return kept
}

func TestIdleConnectionsAreBounded(t *testing.T) {
	var arrived sync.WaitGroup
	arrived.Add(6)
	b := to(t, func(in *bufio.Reader, c net.Conn) {
		arrived.Done()
		arrived.Wait() // each request has a connection of its own
		answers(ok)(in, c)
	}, nil)
	kept := keptAfterBurst(t, b)
	poll.Until(t, "the connection over the limit of its server is closed", func() bool { return kept() <= 2 })
	if got := b.get(); got != "200 ok" || !b.log.reused {
		t.Errorf("%s, %+v", got, b.log)
	}
}

func TestOldConnectionsAreClosed(t *testing.T) {
	b := to(t, answers(ok), func(c *Config) { c.IdleTime = 50 * time.Millisecond })
	kept := keptAfterBurst(t, b)
	poll.Until(t, "no connection is kept any more", func() bool { return kept() == 0 })
	if got := b.get(); got != "200 ok" || b.log.reused {
		t.Errorf("%s, %+v", got, b.log)
	}
}

func TestInterimResponses(t *testing.T) {
	b := to(t, answers("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n"+ok), nil)
	if got := b.get(); got != "200 ok" || fmt.Sprint(b.log.interim) != "[103 102]" || b.log.answered != 1 {
		t.Errorf("%s, %+v", got, b.log)
	}
	b = to(t, answers(strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", maxInterim+1)), nil)
	if got := b.get(); got != "error: "+errInterimOnly.Error() {
		t.Error(got)
	}
}

func TestLongHeader(t *testing.T) {
	b := to(t, answers("HTTP/1.1 200 OK\r\nX: "+strings.Repeat("x", 5000)+"\r\nContent-Length: 0\r\n\r\n"), nil)
	if _, err := b.send(t.Context(), nil); !errors.Is(err, errHeaderTooLong) {
		t.Error(err)
	}
	// The limit is not that of the body.
	b = to(t, answers("HTTP/1.1 200 OK\r\nContent-Length: 20000\r\n\r\n"+strings.Repeat("x", 20000)), nil)
	if got := b.get(); len(got) != 20004 {
		t.Errorf("%d bytes", len(got))
	}
}

// A server that is silent ends its request, and a response whose header has arrived may take
// longer than the limit.
func TestResponseTimeout(t *testing.T) {
	limit := func(c *Config) { c.ResponseTimeout = 100 * time.Millisecond }
	b := to(t, func(in *bufio.Reader, _ net.Conn) { io.Copy(io.Discard, in) }, limit)
	_, err := b.send(t.Context(), nil)
	if e, ok := errors.AsType[net.Error](err); !ok || !e.Timeout() {
		t.Error(err)
	}
	slow := to(t, func(in *bufio.Reader, c net.Conn) {
		http.ReadRequest(in)
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no")
		time.Sleep(300 * time.Millisecond)
		io.WriteString(c, "k")
		answers(ok)(in, c)
	}, limit)
	for range 2 { // the second request has its own limit
		if got := slow.get(); got != "200 ok" {
			t.Error(got)
		}
	}
}

func TestCancel(t *testing.T) {
	for name, start := range map[string]string{"header": "", "body": "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no"} {
		ctx, cancel := context.WithCancel(t.Context())
		b := to(t, func(in *bufio.Reader, c net.Conn) {
			http.ReadRequest(in)
			io.WriteString(c, start)
			time.AfterFunc(50*time.Millisecond, cancel)
			io.Copy(io.Discard, in)
		}, nil)
		resp, err := b.send(ctx, nil)
		if start != "" && err == nil {
			_, err = io.ReadAll(resp.Body)
		}
		if err != context.Canceled {
			t.Errorf("canceled before the %s: %v", name, err)
		}
	}
}

// A body is sent as it is, also when the server answers before it has read the body.
func TestBodies(t *testing.T) {
	sent := bytes.Repeat([]byte("body"), 100_000)
	b := to(t, func(in *bufio.Reader, c net.Conn) {
		for {
			req, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			got, _ := io.ReadAll(req.Body)
			text := fmt.Sprint(bytes.Equal(got, sent), len(req.Trailer["X"]))
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
		}
	}, nil)
	for i, body := range []io.Reader{bytes.NewReader(sent), io.MultiReader(bytes.NewReader(sent))} {
		resp, err := b.send(t.Context(), body)
		if err != nil {
			t.Fatal(err)
		}
		if got := read(resp); got != "200 true 0" || b.log.reused != (i > 0) {
			t.Errorf("body %d: %s, %+v", i, got, b.log)
		}
	}
	early := to(t, func(in *bufio.Reader, c net.Conn) {
		http.ReadRequest(in)
		io.WriteString(c, "HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno")
		c.(*net.TCPConn).CloseWrite()
		time.Sleep(50 * time.Millisecond)
	}, nil)
	resp, err := early.send(t.Context(), bytes.NewReader(make([]byte, 64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	if got := read(resp); got != "413 no" {
		t.Error(got)
	}
}

// errBroken is the error of a body.
var errBroken = errors.New("the client broke off")

type broken struct{ io.Reader }

func (b broken) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err == io.EOF {
		err = errBroken
	}
	return n, err
}

// A body that breaks off ends the request, and the server does not take what it got for a
// whole body.
func TestBrokenBody(t *testing.T) {
	got := make(chan error, 1)
	b := to(t, func(in *bufio.Reader, _ net.Conn) {
		req, err := http.ReadRequest(in)
		if err == nil {
			_, err = io.ReadAll(req.Body)
		}
		got <- err
	}, nil)
	if _, err := b.send(t.Context(), broken{strings.NewReader("half")}); err != errBroken {
		t.Error(err)
	}
	if err := <-got; err == nil {
		t.Error("the server got a whole body")
	}
}

func TestExpectContinue(t *testing.T) {
	const expect = "Expect: 100-continue"
	asks := to(t, func(in *bufio.Reader, c net.Conn) {
		req, err := http.ReadRequest(in)
		if err != nil || in.Buffered() > 0 {
			t.Error("the body came before it was asked for", err)
			return
		}
		io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n")
		text, _ := io.ReadAll(req.Body)
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
	}, nil)
	resp, err := asks.send(t.Context(), strings.NewReader("body"), expect)
	if err != nil {
		t.Fatal(err)
	}
	if got := read(resp); got != "200 body" || fmt.Sprint(asks.log.interim) != "[100]" {
		t.Errorf("%s, %+v", got, asks.log)
	}

	refuses := to(t, answersWithoutBody("HTTP/1.1 417 Expectation Failed\r\nContent-Length: 2\r\n\r\nno"), nil)
	body := strings.NewReader("body")
	if resp, err = refuses.send(t.Context(), body, expect); err != nil {
		t.Fatal(err)
	}
	if got := read(resp); got != "417 no" || body.Len() != 4 {
		t.Errorf("%s, %d bytes of the body are left", got, body.Len())
	}

	silent := to(t, answers(ok), func(c *Config) { c.ContinueTimeout = 50 * time.Millisecond })
	if resp, err = silent.send(t.Context(), strings.NewReader("body"), expect); err != nil {
		t.Fatal(err)
	}
	if got := read(resp); got != "200 ok" {
		t.Error(got)
	}
}

// answersWithoutBody answers before it reads the request's body.
func answersWithoutBody(text string) func(*bufio.Reader, net.Conn) {
	return func(in *bufio.Reader, c net.Conn) {
		if _, err := http.ReadRequest(in); err == nil {
			io.WriteString(c, text)
			io.Copy(io.Discard, in)
		}
	}
}

// Ready is true only if a read does not wait.
func TestReady(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		ready  bool
	}{
		"whole":              {ok, true},
		"header only":        {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", false},
		"part":               {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab", true},
		"whole chunks":       {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", true},
		"part of a chunk":    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n3", false},
		"until the end only": {"HTTP/1.1 200 OK\r\n\r\nab", false},
	} {
		b := to(t, answersWithoutBody(c.answer), nil)
		resp, err := b.send(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := resp.Body.(Ahead).Ready(); got != c.ready {
			t.Errorf("%s: ready %v", name, got)
		}
		resp.Body.Close()
	}
}

func TestTrailers(t *testing.T) {
	b := to(t, answers("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n2\r\nok\r\n0\r\nX: y\r\n\r\n"), nil)
	for range 2 {
		resp, err := b.send(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := read(resp); got != "200 ok" || resp.Trailer.Get("X") != "y" {
			t.Errorf("%s, trailer %v", got, resp.Trailer)
		}
	}
	if !b.log.reused {
		t.Error("the connection was not reused")
	}
}

// A pool that was closed keeps nothing.
func TestClose(t *testing.T) {
	b := to(t, answers(ok), nil)
	b.get()
	b.pool.Close()
	for range 2 {
		if got := b.get(); got != "200 ok" || b.log.reused {
			t.Errorf("%s, %+v", got, b.log)
		}
	}
}
