package dashboard_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"holdfast/internal/control/api"
)

// listen serves the site's handler with the agent's server until the test ends.
func (s *site) listen(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- api.Serve(ctx, l, s.Config.Handler, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// dial opens a connection and sends the text.
func dial(t *testing.T, addr, text string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, text); err != nil {
		t.Logf("sending: %v", err) // the server may have closed it
	}
	return c
}

// asks sends a whole request on its own connection and returns the status.
func asks(t *testing.T, addr string) int {
	t.Helper()
	c := dial(t, addr, "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("a concurrent request: %v", err)
	}
	defer r.Body.Close()
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		t.Fatal(err)
	}
	return r.StatusCode
}

func openFiles(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// Connections without a request, and requests that never end, do not keep other clients
// out, and leave nothing behind.
func TestIdleAndSlowClientsKeepNobodyOut(t *testing.T) {
	s := serve(t, false)
	addr := s.listen(t)
	before := openFiles(t)
	const many = 5000 // of each kind; both ends of a connection are in this process
	var conns []net.Conn
	for i := range many {
		conns = append(conns, dial(t, addr, ""),
			dial(t, addr, "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")) // and no more
		if i%1000 == 0 {
			if status := asks(t, addr); status != http.StatusOK {
				t.Errorf("beside %d connections: status %d", 2*i, status)
			}
		}
	}
	if status := asks(t, addr); status != http.StatusOK {
		t.Errorf("beside %d connections: status %d", len(conns), status)
	}
	if open := openFiles(t) - before - len(conns); open > 1100 {
		t.Errorf("the server holds %d connections", open)
	}
	for _, c := range conns {
		c.Close()
	}
	for limit := time.Now().Add(patience); openFiles(t) > before+10; {
		if time.Now().After(limit) {
			t.Fatalf("%d files are open, %d were before", openFiles(t), before)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// A slow body ends with an error. More than a few logins at once are refused with
// Retry-After.
func TestSlowBodies(t *testing.T) {
	s := serve(t, true)
	addr := s.listen(t)
	const slow = "POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nSec-Fetch-Site: same-origin\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\ntok"
	answers := make(chan string, 100)
	const many = 40
	for range many {
		c := dial(t, addr, slow)
		if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		go func() {
			line, err := bufio.NewReader(c).ReadString('\n')
			answers <- fmt.Sprint(strings.TrimSpace(line), err)
		}()
	}
	got := map[string]int{}
	for range many {
		got[<-answers]++
	}
	if got["HTTP/1.1 503 Service Unavailable<nil>"] != many-32 || got["HTTP/1.1 400 Bad Request<nil>"] != 32 {
		t.Errorf("the answers are %v", got)
	}
	if r := s.login(t, adminToken); r.status != http.StatusSeeOther {
		t.Errorf("a login afterwards: status %d", r.status)
	}
}

func TestHostileRequests(t *testing.T) {
	s := serve(t, false)
	addr := s.listen(t)
	for name, tt := range map[string]struct {
		text string
		want int
	}{
		"no HTTP":               {"\x16\x03\x01\x00\xff\x00\x00\r\n\r\n", http.StatusBadRequest},
		"a huge header":         {"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + strings.Repeat("x", 200<<10) + "\r\n\r\n", http.StatusRequestHeaderFieldsTooLarge},
		"two hosts":             {"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: b\r\n\r\n", http.StatusBadRequest},
		"two lengths":           {"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx", http.StatusBadRequest},
		"no host":               {"GET / HTTP/1.1\r\n\r\n", http.StatusBadRequest},
		"dots":                  {"GET /assets/../../etc/passwd HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", http.StatusTemporaryRedirect},
		"a page beyond the end": {"GET /sessions?page=9223372036854775807 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", http.StatusOK},
		"no number":             {"GET /sessions?page=-1&page=x&state=%00 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", http.StatusOK},
		"a long search":         {"GET /sessions?q=" + strings.Repeat("%f0%9f%92%a9", 1000) + " HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", http.StatusOK},
	} {
		c := dial(t, addr, tt.text)
		if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		r.Body.Close()
		if r.StatusCode != tt.want {
			t.Errorf("%s: status %d, want %d", name, r.StatusCode, tt.want)
		}
	}
}

// More live pages than the limit are refused. A closed page makes room.
func TestStreamsAreBounded(t *testing.T) {
	s := serve(t, false)
	var stops []func()
	for range 256 {
		_, stop := s.follow(t, "/live/fleet")
		stops = append(stops, stop)
	}
	if r := s.get(t, "/live/fleet"); r.status != http.StatusServiceUnavailable || r.header.Get("Retry-After") == "" {
		t.Errorf("one over the limit: status %d, Retry-After %q", r.status, r.header.Get("Retry-After"))
	}
	for _, stop := range stops {
		stop()
	}
	for limit := time.Now().Add(patience); ; {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/live/fleet", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := s.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode == http.StatusOK {
			return
		}
		if time.Now().After(limit) {
			t.Fatal("closed pages make no room")
		}
	}
}
