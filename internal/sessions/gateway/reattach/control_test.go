package reattach

import (
	"bytes"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"holdfast/internal/sessions/gateway/frame"
)

// watched is a client's connection that reports what was read from it.
type watched struct {
	net.Conn
	beforeWrite func([]byte)

	mu     sync.Mutex
	cond   sync.Cond
	read   int // bytes
	begins int // bytes that were read when the last Read began
}

func (c *watched) Read(b []byte) (int, error) {
	c.mu.Lock()
	c.begins = c.read
	c.cond.Broadcast()
	c.mu.Unlock()
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read += n
	return n, err
}

func (c *watched) Write(b []byte) (int, error) {
	c.beforeWrite(b)
	return c.Conn.Write(b)
}

// await returns when the first n bytes of the client were handled.
func (c *watched) await(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.begins < n {
		c.cond.Wait()
	}
}

func watch(s *Spec) *watched {
	c := &watched{Conn: s.Client, beforeWrite: func([]byte) {}}
	c.cond.L = &c.mu
	s.Client = c
	return c
}

// deaf is a server's connection that accepts nothing more once it is told so.
type deaf struct {
	net.Conn
	told *atomic.Bool
}

func (c deaf) Write(b []byte) (int, error) {
	if c.told.Load() {
		return 0, errors.New("the server reads no more")
	}
	return c.Conn.Write(b)
}

// A Ping or a Close frame that arrives when the next server is known, and not yet
// connected to the client, reaches that server, in its place. Data after a Close frame does not.
func TestControlFramesReachTheNextServer(t *testing.T) {
	for name, f := range map[string]struct {
		first   byte
		payload string
	}{"Ping": {frame.Fin | frame.Ping, "there?"}, "Close": {frame.Fin | frame.Close, "\x03\xe8"}} {
		t.Run(name, func(t *testing.T) {
			var client *watched
			b := start(t, func(s *Spec) {
				client = watch(s)
				s.Policy.Tell = "moved"
			})
			client.beforeWrite = func(p []byte) {
				if bytes.Contains(p, []byte("moved")) {
					sent := slices.Concat(text("before"), clientFrame(f.first, f.payload), text("after"))
					b.conn.Write(sent)
					client.await(len(sent))
				}
			}
			b.leave()
			b.next <- b.newServer()
			expectFrame(t, b.client, frame.Fin|frame.Text, "moved")
			expectFrame(t, b.server, frame.Fin|frame.Text, "before")
			expectFrame(t, b.server, f.first, f.payload)
			if name == "Ping" {
				expectFrame(t, b.server, frame.Fin|frame.Text, "after")
				return
			}
			// Nothing that follows a Close frame counts (RFC 6455, 5.5.1).
			send(t, b.server, frame.Closing(1000))
			expectFrame(t, b.client, frame.Fin|frame.Close, "\x03\xe8")
			b.conn.Close()
			if rest, err := io.ReadAll(b.server); err != nil || len(rest) > 0 {
				t.Errorf("after the Close frame the server receives %x, %v", rest, err)
			}
		})
	}
}

// A Ping that arrives after the server has stopped to read, and before that is known, is
// answered.
func TestPingAfterTheLastServer(t *testing.T) {
	var client *watched
	var told atomic.Bool
	b := start(t, func(s *Spec) {
		client = watch(s)
		s.Server.Conn = deaf{s.Server.Conn, &told}
	})
	told.Store(true)
	one, ping := text("one"), clientFrame(frame.Fin|frame.Ping, "there?")
	send(t, b.conn, one)
	client.await(len(one))
	send(t, b.conn, ping)
	client.await(len(one) + len(ping))
	b.leave()
	<-b.asked
	expectFrame(t, b.client, frame.Fin|frame.Pong, "there?")
	b.next <- b.newServer()
	expectFrame(t, b.server, frame.Fin|frame.Text, "one")
}

// Between two servers the gateway answers a Close frame with its own code, and leaves
// what RFC 6455 forbids to the next server.
func TestAnswersBetweenServers(t *testing.T) {
	for name, c := range map[string]struct{ payload, want string }{
		"normal":         {"\x03\xe8", "\x03\xe8"},
		"with a reason":  {"\x0f\xa0bye", "\x0f\xa0"},
		"without a code": {"", ""},
		"half a code":    {"a", "\x03\xea"},
		"reserved code":  {"\x03\xed", "\x03\xea"},
		"no UTF-8":       {"\x03\xe8\xff", "\x03\xef"},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, nil)
			b.leave()
			<-b.asked
			send(t, b.conn, clientFrame(frame.Fin|frame.Close, c.payload))
			expectFrame(t, b.client, frame.Fin|frame.Close, c.want)
			b.conn.Close()
			b.expectDone(Client)
		})
	}
	for name, f := range map[string][]byte{
		"a fragment of a Ping":     clientFrame(frame.Ping, "a"),
		"a Ping with reserved bit": clientFrame(frame.Fin|0x40|frame.Ping, "a"),
		"a long Ping":              clientFrame(frame.Fin|frame.Ping, string(make([]byte, 126))),
		"a long Close":             clientFrame(frame.Fin|frame.Close, string(make([]byte, 126))),
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, nil)
			b.leave()
			<-b.asked
			send(t, b.conn, f)
			b.next <- b.newServer()
			h, _ := frame.Parse(f)
			expectFrame(t, b.server, f[0], string(h.Payload(f)))
			send(t, b.server, frame.Closing(1002))
			expectFrame(t, b.client, frame.Fin|frame.Close, "\x03\xea")
		})
	}
}
