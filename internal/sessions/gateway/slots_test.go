package gateway

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"testing"

	"github.com/coder/websocket"

	"holdfast/test/poll"
)

// secure makes a gateway with TLS and HTTP/2.
func secure(t *testing.T, change func(*Config)) func(*Config) {
	cert, key := certificate(t)
	return func(c *Config) {
		c.CertFile, c.KeyFile = cert, key
		if change != nil {
			change(c)
		}
	}
}

// clientAt returns a client at a loopback address that uses one HTTP/2 connection.
func (f *fixture) clientAt(ip string) *http.Client {
	tr := &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		DialContext:       (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}).DialContext,
		ForceAttemptHTTP2: true,
	}
	f.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: patience}
}

func (f *fixture) getBy(c *http.Client, path string) *http.Response {
	f.t.Helper()
	resp, err := c.Get("https://" + f.addr + path)
	if err != nil {
		f.t.Fatal(err)
	}
	return resp
}

// Requests in progress have a limit for each client and one in total. Streams of one
// HTTP/2 connection, event streams and WebSockets count, and give their place back. A
// request waits for a place that is free in a moment.
func TestRequestsInProgressAreBounded(t *testing.T) {
	f := start(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			echoSocket(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		http.NewResponseController(w).Flush()
		if r.URL.Path == "/stay" {
			<-r.Context().Done()
		}
	}, secure(t, func(c *Config) { c.MaxRequestsPerClient, c.MaxRequests = 3, 4 }))
	one, other, third := f.clientAt("127.0.0.1"), f.clientAt("127.0.0.2"), f.clientAt("127.0.0.3")
	expect := func(c *http.Client, path string, status int) *http.Response {
		t.Helper()
		resp := f.getBy(c, path)
		if resp.StatusCode != status || resp.ProtoMajor != 2 || (resp.Header.Get("Retry-After") != "") != (status != 200) {
			t.Errorf("%s: %s %s, Retry-After %q", path, resp.Proto, resp.Status, resp.Header.Get("Retry-After"))
		}
		if path != "/s/alice/stay" {
			io.Copy(io.Discard, resp.Body)
		}
		t.Cleanup(func() { resp.Body.Close() })
		return resp
	}
	ws := f.webSocket("wss", nil) // from 127.0.0.1
	exchange(t, ws, 10)
	first := expect(one, "/s/alice/stay", 200)
	expect(one, "/s/alice/stay", 200)
	expect(one, "/s/alice/", 429)
	expect(other, "/s/alice/stay", 200)
	expect(third, "/s/alice/", 503)

	waited := make(chan int, 1)
	go func() {
		resp, err := one.Get("https://" + f.addr + "/s/alice/")
		if err != nil {
			waited <- -1
			return
		}
		resp.Body.Close()
		waited <- resp.StatusCode
	}()
	poll.Until(t, "a request waits for a place", func() bool { return f.gateway.slots.waiting.Load() == 1 || len(waited) > 0 })
	first.Body.Close()
	if status := <-waited; status != 200 {
		t.Errorf("the request that waits: %d", status)
	}
	expect(third, "/s/alice/", 200)
	poll.Until(t, "the places of short requests are free", func() bool { return f.gateway.slots.count() == 3 })

	ws.Close(websocket.StatusNormalClosure, "")
	poll.Until(t, "the place of a WebSocket is free", func() bool { return f.gateway.slots.count() == 2 })
}

func (s *slots) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken
}

// Slots are neither lost nor given back twice, and the table has no entry for clients
// without requests.
func TestSlots(t *testing.T) {
	s := newSlots(2, 50)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			client := netip.MustParseAddr(fmt.Sprintf("10.0.0.%d", i))
			for range 1000 {
				a, err := s.take(client)
				if err != nil {
					t.Error(err)
				}
				b := a.giveAway()
				a.free()
				b.free()
				b.free()
			}
		})
	}
	all.Wait()
	if s.taken != 0 || len(s.clients) != 0 {
		t.Errorf("%d taken, %d clients", s.taken, len(s.clients))
	}
}
