package gateway

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"holdfast"
	"holdfast/test/poll"
	"holdfast/test/serve"
)

// greeter is a server that speaks first, as databases do, and then echoes.
func greeter(t *testing.T) string {
	t.Helper()
	return serve.TCP(t, func(c net.Conn) {
		_, _ = io.WriteString(c, "hello\n") // the client may have gone
		_, _ = io.Copy(c, c)
	})
}

// greeted connects to the TCP address and reads the greeting.
func (f *fixture) greeted() (net.Conn, *bufio.Reader) {
	f.t.Helper()
	c, err := net.Dial("tcp", f.tcp)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	r := bufio.NewReader(c)
	if text, err := r.ReadString('\n'); text != "hello\n" {
		f.t.Fatalf("greeted by %q, %v", text, err)
	}
	return c, r
}

// A TCP address carries any protocol, to this node and to another one. Both ends of a
// connection are passed on, and it ends when its session leaves or the gateway stops.
func TestTCPAddress(t *testing.T) {
	eachPlace(t, func(t *testing.T, f *fixture, left func()) {
		c, r := f.greeted()
		if _, err := io.WriteString(c, "select 1"); err != nil {
			t.Fatal(err)
		}
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(r); string(text) != "select 1" || err != nil {
			t.Errorf("%q, %v", text, err)
		}
		poll.Until(t, "the session is released", func() bool { held, _ := f.sessions.count(); return held == 0 })
		poll.Until(t, "no connection is counted", func() bool { return valueOf(t, f.gateway.metrics.tcp) == 0 })

		_, r = f.greeted()
		left()
		if _, err := r.ReadByte(); err == nil {
			t.Error("a connection outlives its session")
		}
	})
}

func eachPlace(t *testing.T, test func(t *testing.T, f *fixture, left func())) {
	t.Run("here", func(t *testing.T) {
		f := start(t, nil, nil)
		f.serveAt(greeter(t))
		test(t, f, func() { close(f.left) })
	})
	t.Run("on another node", func(t *testing.T) {
		all := newFleet(t)
		owner, first := all.join("owner", http.NotFound, nil), all.join("first", nil, nil)
		owner.local.set(func(l *fakeLocal) { l.address = greeter(t) })
		first.leadTo(owner)
		test(t, first.fixture, func() { close(owner.local.left) })
	})
}

// A connection waits until its session is ready, and is reset after the parking time. At
// the gateway's end an open one may finish within stop_timeout.
func TestTCPConnectionsWait(t *testing.T) {
	f := start(t, nil, func(c *Config) { c.ParkTime, c.StopTimeout = 200*time.Millisecond, 50*time.Millisecond })
	f.park()
	c, err := net.Dial("tcp", f.tcp)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil || err == io.EOF {
		t.Errorf("without a session: %d bytes, %v", n, err)
	}
	if n := valueOf(t, f.gateway.metrics.errors.WithLabelValues("parked_too_long")); n != 1 {
		t.Errorf("%v errors are counted", n)
	}

	refuses, ready := "127.0.0.1:1", greeter(t)
	f.sessions.set(func(context.Context, holdfast.SessionKey) (holdfast.Route, error) {
		f.sessions.mu.Lock()
		defer f.sessions.mu.Unlock()
		if len(f.sessions.refused) == 0 {
			return holdfast.Route{Key: "alice-0", Address: refuses, Epoch: 1, Left: f.left}, nil
		}
		return holdfast.Route{Key: "alice-1", Address: ready, Epoch: 1, Left: f.left}, nil
	})
	_, r := f.greeted() // by the second try
	f.stop()
	if _, err := r.ReadByte(); err == nil {
		t.Error("a connection outlives its gateway")
	}
}

// The header with which gateways ask each other for a TCP connection is not for clients.
func TestClientsCannotAskForTCP(t *testing.T) {
	all := newFleet(t)
	seen := make(chan http.Header, 1)
	owner := all.join("owner", func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header }, nil)
	first := all.join("first", nil, nil)
	first.leadTo(owner)
	if resp, _ := first.get("/s/alice/", rawHeader, rawProtocol, "Connection", "Upgrade", "Upgrade", rawProtocol); resp.StatusCode != http.StatusOK {
		t.Error(resp.Status)
	}
	if h := <-seen; h.Get(rawHeader) != "" {
		t.Errorf("the server received %v", h)
	}
}
