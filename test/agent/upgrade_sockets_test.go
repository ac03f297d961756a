package agent

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/control/api"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// talker is a client of an open connection to a server that echoes. It sends one message after
// another, without a pause, and compares the answers.
type talker struct {
	name string
	stop atomic.Bool
	done chan error
	n    atomic.Int64

	longest time.Duration // of an exchange; valid after end
}

// talk runs exchange until end is called.
func talk(name string, exchange func(n int64) error) *talker {
	c := &talker{name: name, done: make(chan error, 1)}
	go func() {
		for !c.stop.Load() {
			begun := time.Now()
			if err := exchange(c.n.Add(1)); err != nil {
				c.done <- fmt.Errorf("message %d: %w", c.n.Load(), err)
				return
			}
			c.longest = max(c.longest, time.Since(begun))
		}
		c.done <- nil
	}()
	return c
}

// more waits until the client has exchanged further messages.
func (c *talker) more(t *testing.T) {
	t.Helper()
	before := c.n.Load()
	poll.Until(t, c.name+" exchanges messages", func() bool {
		select {
		case err := <-c.done:
			t.Fatalf("%s: %v", c.name, err)
		default:
		}
		return c.n.Load() > before+10
	})
}

func (c *talker) end(t *testing.T) {
	t.Helper()
	c.stop.Store(true)
	if err := <-c.done; err != nil {
		t.Errorf("%s: %v", c.name, err)
	}
	t.Logf("%s exchanged %d messages, the longest took %v", c.name, c.n.Load(), c.longest)
}

// payload is a message of a size that changes.
func payload(n int64) []byte {
	return fmt.Appendf(nil, "%d %s", n, strings.Repeat("x", int(n*n%90_000)))
}

func (h *host) talkWebSocket(key string) *talker {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), 5*time.Minute)
	h.t.Cleanup(cancel)
	ws, _, err := websocket.Dial(ctx, "ws://"+h.gateway+"/s/"+key+"/ws", nil)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { ws.CloseNow() })
	ws.SetReadLimit(1 << 20)
	return talk("the WebSocket of "+key, func(n int64) error {
		if err := ws.Write(ctx, websocket.MessageBinary, payload(n)); err != nil {
			return err
		}
		if _, got, err := ws.Read(ctx); err != nil || !bytes.Equal(got, payload(n)) {
			return fmt.Errorf("%.20q (%d bytes), %w", got, len(got), err)
		}
		return nil
	})
}

// talkTCP speaks HTTP on one connection to a TCP address, which is an ordinary protocol with an
// answer to each request.
func (h *host) talkTCP(addr string) *talker {
	h.t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(5 * time.Minute))
	r := bufio.NewReader(c)
	return talk("the connection to "+addr, func(n int64) error {
		if _, err := fmt.Fprintf(c, "GET /stream?n=3&every=1ms HTTP/1.1\r\nHost: %s\r\n\r\n", addr); err != nil {
			return err
		}
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			return err
		}
		b, err := io.ReadAll(res.Body)
		if err == nil && strings.Count(string(b), "\n") != 3 {
			err = fmt.Errorf("%q", b)
		}
		return err
	})
}

// Open connections continue with the next agent and the same server, WebSockets with and
// without websocket: keep and connections to a TCP address alike, also when the next agent
// cannot serve and the old one serves again.
func TestConnectionsOutliveAnUpgrade(t *testing.T) {
	needDocker(t) // it breaks the engine's address
	tcp := labtest.FreePort(t)
	h := newHost(t, "\ntemplates:"+template+fmt.Sprintf("    tcp: {listen: %q, key: a}\n", tcp)+
		strings.Replace(template, "web", "keeping", 1)+"    websocket: keep\n    kept_sockets: {tell: moved}\n")
	h.installReal()
	h.startLogged()
	h.open("a")
	h.must("session", "start", "b", "--template", "keeping")
	before, starts := h.running(), startTimes(t, h, h.running())
	clients := []*talker{h.talkWebSocket("a"), h.talkWebSocket("b"), h.talkTCP(tcp)}
	all := func(f func(c *talker)) {
		var wg sync.WaitGroup
		for _, c := range clients {
			wg.Go(func() { f(c) })
		}
		wg.Wait()
	}
	more := func() {
		t.Helper()
		for _, c := range clients {
			c.more(t)
		}
	}
	more()
	for range labtest.Count(2, 10) {
		r, u := h.upgrade()
		if r.code != 0 || u.State != api.UpgradeDone || u.Connections != len(clients) {
			t.Fatalf("%+v\n%+v", r, u)
		}
		t.Logf("%v", u.Steps)
		more()
	}
	good, err := os.ReadFile(h.configFile())
	if err != nil {
		t.Fatal(err)
	}
	bad := strings.Replace(string(good), h.docker, "unix:///nowhere/docker.sock", 1)
	if err := os.WriteFile(h.configFile(), []byte(bad), 0o600); err != nil {
		t.Fatal(err)
	}
	if r, u := h.upgrade(); r.code == 0 || u.State != api.UpgradeFailed {
		t.Fatalf("%+v\n%+v", r, u)
	}
	more()
	if err := os.WriteFile(h.configFile(), good, 0o600); err != nil {
		t.Fatal(err)
	}
	if r, u := h.upgrade(); r.code != 0 || u.Connections != len(clients) {
		t.Fatalf("%+v\n%+v", r, u)
	}
	more()
	all(func(c *talker) { c.end(t) })
	h.sameContainers(before, starts)
	if got := h.metric(`holdfast_gateway_taken_over_connections_total{kind="kept"}`); got != "1" {
		t.Errorf("%s kept WebSockets were taken over", got)
	}
}
