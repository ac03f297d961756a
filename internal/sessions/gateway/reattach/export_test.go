package reattach

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/sessions/gateway/frame"
)

// open returns a proxy that runs until the test ends.
func open(t *testing.T) *Proxy {
	t.Helper()
	var p Proxy
	ctx, cancel := context.WithCancel(context.Background())
	if err := p.Open(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); p.Close() })
	return &p
}

// chain is a bench whose socket passes through several proxies.
type chain struct {
	*bench
	proxy  *Proxy
	spec   Spec
	got    chan Exported
	ended  int // Done calls
	mu     sync.Mutex
	last   *State
	server bool // the last export had a server
}

func startChain(t *testing.T, change func(*Spec)) *chain {
	t.Helper()
	c := &chain{got: make(chan Exported, 1)}
	c.bench = start(t, func(s *Spec) {
		s.Export = func(e Exported) { c.got <- e }
		s.Done = func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.ended++
		}
		if change != nil {
			change(s)
		}
		c.spec = *s
	})
	c.proxy = c.bench.proxy
	return c
}

// pass makes the next proxy serve the socket.
func (c *chain) pass() {
	c.t.Helper()
	c.resume(c.export())
}

// export makes the proxy pass the socket on.
func (c *chain) export() (e Exported) {
	c.t.Helper()
	c.mu.Lock()
	before := c.ended
	c.mu.Unlock()
	c.proxy.Export()
	select {
	case e = <-c.got:
	default:
		c.t.Fatal("the socket was not exported")
	}
	c.mu.Lock()
	if c.ended != before+1 {
		c.t.Errorf("Done was called %d times, want %d", c.ended, before+1)
	}
	c.mu.Unlock()
	return e
}

// resume makes a new proxy serve the socket.
func (c *chain) resume(e Exported) {
	c.t.Helper()
	b, err := json.Marshal(e.State)
	if err != nil {
		c.t.Fatal(err)
	}
	c.last, c.server = &State{}, e.Server >= 0
	if err := json.Unmarshal(b, c.last); err != nil {
		c.t.Fatal(err)
	}
	s := c.spec
	var server net.Conn
	if s.Client, server, err = e.Open(); err != nil {
		c.t.Fatal(err)
	}
	s.Early, s.Before = nil, c.last
	s.Server.Conn, s.Server.Ahead, s.Server.Left = server, nil, c.left
	s.Server.Release = func() { c.bench.mu.Lock(); c.released++; c.bench.mu.Unlock() }
	if server == nil {
		s.Server = Server{}
	}
	c.proxy = open(c.t)
	if err := c.proxy.Add(s); err != nil {
		c.t.Fatal(err)
	}
}

// The socket continues in the next proxy, between two frames and within one, in both
// directions, and while a long frame waits for a slow reader.
func TestExportedSocketContinues(t *testing.T) {
	c := startChain(t, nil)
	c.pass()
	send(t, c.conn, text("one"))
	expectFrame(t, c.bench.server, frame.Fin|frame.Text, "one")
	send(t, c.bench.server, frame.Server(frame.Text, []byte("uno")))
	expectFrame(t, c.client, frame.Fin|frame.Text, "uno")

	short, answer := text("halves"), frame.Server(frame.Text, []byte("mitades"))
	for cut := 1; cut < len(answer); cut += 3 {
		send(t, c.conn, short[:cut])
		send(t, c.bench.server, answer[:cut])
		c.pass()
		send(t, c.conn, short[cut:])
		send(t, c.bench.server, answer[cut:])
		expectFrame(t, c.bench.server, frame.Fin|frame.Text, "halves")
		expectFrame(t, c.client, frame.Fin|frame.Text, "mitades")
	}

	// Frames that neither reader accepts at once.
	long := strings.Repeat("a long frame ", 1<<20)
	up, down := text(long), frame.Server(frame.Text, []byte(long))
	var all sync.WaitGroup
	write := func(to net.Conn, b []byte) {
		all.Go(func() {
			if _, err := to.Write(b); err != nil {
				t.Error(err)
			}
		})
	}
	write(c.conn, up)
	write(c.bench.server, down)
	unsent := 0
	for range 5 {
		time.Sleep(20 * time.Millisecond)
		c.pass()
		unsent += len(c.last.ToClient) + len(c.last.ToServer)
	}
	if unsent == 0 {
		t.Error("nothing waited for a reader")
	}
	for range 5 {
		if _, err := io.CopyN(io.Discard, &checked{t: t, want: down, from: c.client}, 1<<20); err != nil {
			t.Fatal(err)
		}
		down = down[1<<20:]
		if _, err := io.CopyN(io.Discard, &checked{t: t, want: up, from: c.bench.server}, 1<<20); err != nil {
			t.Fatal(err)
		}
		up = up[1<<20:]
		c.pass()
	}
	for _, r := range []*checked{{t: t, want: down, from: c.client}, {t: t, want: up, from: c.bench.server}} {
		if _, err := io.CopyN(io.Discard, r, int64(len(r.want))); err != nil {
			t.Fatal(err)
		}
	}
	all.Wait()
	send(t, c.bench.server, frame.Closing(1000))
	expectFrame(t, c.client, frame.Fin|frame.Close, "\x03\xe8")
	c.bench.server.Close()
	c.conn.Close()
}

// checked fails the test unless it reads want.
type checked struct {
	t    *testing.T
	want []byte
	from io.Reader
}

func (c *checked) Read(p []byte) (int, error) {
	n, err := c.from.Read(p[:min(len(p), len(c.want))])
	if !bytes.Equal(p[:n], c.want[:n]) {
		c.t.Fatal("other bytes than were sent")
	}
	c.want = c.want[n:]
	return n, err
}

// A socket without a server continues its wait: what the client has sent meanwhile, Pings
// included, is not lost.
func TestExportedWhileSuspended(t *testing.T) {
	x := newSuspension()
	c := startChain(t, func(s *Spec) { s.Awake, s.Policy.Tell = x.awake, "resumed" })
	c.leave()
	<-x.begun
	for range 3 {
		c.pass()
		<-x.ended
		<-x.begun
		if c.server {
			t.Error("it has a server")
		}
		send(t, c.conn, clientFrame(frame.Fin|frame.Ping, "there?"))
		expectFrame(t, c.client, frame.Fin|frame.Pong, "there?")
	}
	first := text("first, in two parts")
	send(t, c.conn, first[:5])
	c.pass()
	<-x.ended
	<-x.begun
	send(t, c.conn, first[5:])
	<-c.asked // the data looks for a server
	c.pass()  // which ends the search
	for range 2 {
		<-x.ended
	}
	<-x.begun
	<-c.asked // the next proxy knows of the data
	send(t, c.conn, text("second"))
	c.next <- c.newServer()
	expectFrame(t, c.client, frame.Fin|frame.Text, "resumed")
	expectFrame(t, c.bench.server, frame.Fin|frame.Text, "first, in two parts")
	expectFrame(t, c.bench.server, frame.Fin|frame.Text, "second")
	c.pass()
	if !c.server {
		t.Error("it has no server")
	}
	send(t, c.bench.server, frame.Server(frame.Text, []byte("uno")))
	expectFrame(t, c.client, frame.Fin|frame.Text, "uno")
	c.conn.Close()
	c.bench.server.Close()
}

// The connection to another node ends after the client's last frames, and after the server's.
// The next proxy looks for the server again.
func TestExportedFromAnotherNode(t *testing.T) {
	c := startChain(t, func(s *Spec) { s.Server.Far = true })
	send(t, c.conn, text("last"))
	old := c.bench.server
	go func() {
		if _, err := io.Copy(io.Discard, old); err != nil { // until the proxy has ended its direction
			t.Error(err)
		}
		_, _ = old.Write(frame.Server(frame.Text, []byte("farewell")))
		old.Close()
	}()
	time.Sleep(10 * time.Millisecond)
	c.pass()
	if c.server {
		t.Error("the connection to another node was exported")
	}
	<-c.asked
	c.next <- c.newServer()
	expectFrame(t, c.client, frame.Fin|frame.Text, "farewell")
	send(t, c.conn, text("next"))
	expectFrame(t, c.bench.server, frame.Fin|frame.Text, "next")
	c.conn.Close()
	c.bench.server.Close()
}

// A session that leaves while its socket is passed on: the next proxy delivers what the server
// has sent, and looks for the next one.
func TestSessionLeavesMeanwhile(t *testing.T) {
	c := startChain(t, nil)
	send(t, c.bench.server, frame.Server(frame.Text, []byte("uno")))
	expectFrame(t, c.client, frame.Fin|frame.Text, "uno")
	e := c.export()
	send(t, c.bench.server, frame.Server(frame.Text, []byte("dos")))
	send(t, c.conn, text("two"))
	close(c.left)
	c.resume(e)
	expectFrame(t, c.client, frame.Fin|frame.Text, "dos")
	<-c.asked
	c.left = make(chan struct{})
	c.next <- c.newServer()
	expectFrame(t, c.bench.server, frame.Fin|frame.Text, "two")
	c.conn.Close()
	c.bench.server.Close()
}

// Sockets whose client uses TLS or is another gateway, and those without Export, are served to
// their end.
func TestNotExported(t *testing.T) {
	for name, change := range map[string]func(*Spec){
		"another gateway": func(s *Spec) { s.PeerForward, s.Export = true, func(Exported) { t.Error("exported") } },
		"no plain socket": func(s *Spec) {
			s.Client, s.Export = struct{ net.Conn }{s.Client}, func(Exported) { t.Error("exported") }
		},
		"no Export": nil,
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, change)
			b.proxy.Export()
			send(t, b.conn, text("one"))
			expectFrame(t, b.server, frame.Fin|frame.Text, "one")
			b.conn.Close()
			b.server.Close()
			b.expectDone()
		})
	}
}

// After Export, no socket is added.
func TestAddAfterExport(t *testing.T) {
	p := open(t)
	p.Export()
	ours, theirs := pairOf(t)
	up, server := pairOf(t)
	err := p.Add(Spec{Client: ours, Server: Server{Conn: up}, Export: func(Exported) {}})
	if err == nil {
		t.Fatal("it was added")
	}
	for _, c := range []net.Conn{theirs, server} {
		if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("%d, %v", n, err)
		}
	}
}

// An echo of frames of all sizes passes through many proxies at any moments.
func TestExportedAtAnyMoment(t *testing.T) {
	const messages = 400
	c := startChain(t, nil)
	server := c.bench.server
	r := rand.New(rand.NewPCG(7, 7))
	sizes := make([]int, messages)
	for i := range sizes {
		sizes[i] = []int{0, 1, 125, 126, 4 << 10, 65 << 10, 200 << 10}[r.IntN(7)]
	}
	payload := func(i int) string { return fmt.Sprintf("%d %s", i, strings.Repeat("x", sizes[i])) }
	var all sync.WaitGroup
	all.Go(func() {
		for i := range messages {
			if _, err := c.conn.Write(text(payload(i))); err != nil {
				t.Errorf("message %d: %v", i, err)
				return
			}
		}
	})
	all.Go(func() { // the server
		for i := range messages {
			op, got := readFrame(t, server)
			if op != frame.Fin|frame.Text || got != payload(i) {
				t.Errorf("message %d: the server read %d bytes, %.20q", i, len(got), got)
				return
			}
			if _, err := server.Write(frame.Server(frame.Text, []byte(got))); err != nil {
				t.Errorf("message %d: %v", i, err)
				return
			}
		}
	})
	received := make(chan struct{})
	all.Go(func() {
		defer close(received)
		for i := range messages {
			if op, got := readFrame(t, c.client); op != frame.Fin|frame.Text || got != payload(i) {
				t.Errorf("message %d: the client read %d bytes, %.20q", i, len(got), got)
				return
			}
		}
	})
	passed := 0
	for open := true; open; passed++ {
		select {
		case <-received:
			open = false
		case <-time.After(time.Duration(r.IntN(5000)) * time.Microsecond):
			c.pass()
		}
	}
	all.Wait()
	t.Logf("passed on %d times", passed-1)
	if passed < 5 {
		t.Error("the socket was hardly passed on")
	}
	c.conn.Close()
	server.Close()
}
