package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast"
)

// A connection over the limit waits until another one is closed, which may be an upgraded
// one, and is then served.
func TestConnectionsAreBounded(t *testing.T) {
	eachScheme(t, func(t *testing.T, scheme string, change func(*Config)) {
		f := start(t, echoSocket, func(c *Config) {
			c.MaxConnections = 1
			if change != nil {
				change(c)
			}
		})
		first := f.webSocket(scheme, nil)
		exchange(t, first, 10)
		asked := make(chan struct{})
		f.sessions.set(func(_ context.Context, key holdfast.SessionKey) (holdfast.Route, error) {
			close(asked)
			return holdfast.Route{}, holdfast.ErrNotFound
		})
		got := make(chan int, 1)
		go func() {
			req := f.request("GET", "/s/alice/", nil)
			if scheme == "wss" {
				req.URL.Scheme = "https"
			}
			resp, err := f.client.Do(req)
			if err != nil {
				got <- -1
				return
			}
			resp.Body.Close()
			got <- resp.StatusCode
		}()
		exchange(t, first, 10)
		select {
		case <-asked:
			t.Error("two connections are served")
		default:
		}
		first.CloseNow()
		if status := <-got; status != 404 {
			t.Errorf("the second: %d", status)
		}
	})
}

// The place of a request is free before that of its connection. Otherwise the next
// connection could find none for its request.
func TestPlaceOfARequestIsFreeFirst(t *testing.T) {
	f := start(t, nil, nil)
	server := newLife(t, "echo", nil)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	taken := make(chan int, 1)
	srv := &http.Server{Handler: f.gateway}
	end := make(chan struct{})
	go func() {
		defer close(end)
		srv.Serve(watchedListener{ln, func() { taken <- f.gateway.slots.count() }})
	}()
	defer func() { srv.Close(); <-end }()
	for name, keep := range map[string]*holdfast.KeepSockets{"WebSocket": nil, "kept WebSocket": keepTold} {
		f.sessions.set(func(_ context.Context, key holdfast.SessionKey) (holdfast.Route, error) {
			return server.route(key, 1, keep), nil
		})
		c, _, err := websocket.Dial(t.Context(), "ws://"+ln.Addr().String()+"/s/alice/", nil)
		if err != nil {
			t.Fatal(err)
		}
		ask(t, c, "a", "echo a")
		c.CloseNow()
		if n := <-taken; n != 0 {
			t.Errorf("%s: %d places are taken when its connection's place is free", name, n)
		}
	}
}

// watchedListener calls free when the place of a connection is free.
type watchedListener struct {
	net.Listener
	free func()
}

func (l watchedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &limitedConn{c.(*net.TCPConn), l.free}, nil
}

func TestLimitListener(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := newLimitListener(ln, 1)
	accept := func() chan net.Conn {
		got := make(chan net.Conn, 1)
		go func() {
			c, _ := l.Accept()
			got <- c
		}()
		return got
	}
	dial := func() {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
	dial()
	dial()
	first := <-accept()
	next := accept()
	select {
	case <-next:
		t.Error("two connections are open")
	default:
	}
	raw, free := takeOut(first)
	raw.Close()
	if len(l.slots) != 1 {
		t.Error("the slot is free before its connection is closed")
	}
	free()
	second := <-next
	second.Close()
	second.Close() // frees only one slot
	if n := len(l.slots); n != 0 {
		t.Errorf("%d slots are occupied", n)
	}
	last := accept()
	l.Close()
	if c := <-last; c != nil {
		t.Error("accepted after Close")
	}
}

// The gateway does not wait for the body of a refused request.
func TestUnreadBodyIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: takes the 5 s that a body may")
	}
	t.Parallel()
	f := start(t, nil, nil)
	f.failWith(holdfast.ErrNotFound)
	c := f.dial()
	fmt.Fprintf(c, "POST /s/alice/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nbegun")
	began := time.Now()
	br := bufio.NewReader(c)
	resp, err := http.ReadResponse(br, nil)
	if err != nil || resp.StatusCode != 404 {
		t.Fatalf("%v %v", resp, err)
	}
	if _, err := io.Copy(io.Discard, br); err != nil { // the deadline of patience would return an error
		t.Errorf("after %v: %v", time.Since(began), err)
	}
}
