package reattach

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast"
	"holdfast/internal/sessions/gateway/frame"
	"holdfast/test/serve"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is a deadline against hanging, not an expectation.
const patience = 20 * time.Second

// pairOf returns the two ends of a TCP connection.
func pairOf(t *testing.T) (ours, theirs net.Conn) {
	t.Helper()
	dialed, accepted := serve.Pair(t)
	dialed.SetDeadline(time.Now().Add(patience))
	return accepted, dialed
}

// bench is a kept socket and its servers.
type bench struct {
	t      *testing.T
	client *bufio.ReadWriter
	conn   net.Conn // the client's
	left   chan struct{}
	server net.Conn // the end of the current server
	next   chan Server
	proxy  *Proxy
	asked  chan struct{}   // one for each search for a server
	hurry  <-chan struct{} // of the last search
	stop   context.CancelFunc

	mu       sync.Mutex
	outcomes []Outcome
	released int
	done     chan struct{}
}

func start(t *testing.T, change func(*Spec)) *bench {
	t.Helper()
	b := &bench{t: t, left: make(chan struct{}), next: make(chan Server, 1), asked: make(chan struct{}, 8), done: make(chan struct{})}
	k := &Proxy{}
	b.proxy = k
	ctx, cancel := context.WithCancel(context.Background())
	b.stop = cancel
	if err := k.Open(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		k.Close()
	})
	ours, theirs := pairOf(t)
	b.conn = theirs
	b.client = bufio.NewReadWriter(bufio.NewReader(theirs), bufio.NewWriter(theirs))
	s := Spec{
		Client: ours, Server: b.newServer(), Policy: holdfast.KeepSockets{Time: patience, Buffer: 1 << 10},
		Next: func(ctx context.Context, hurry <-chan struct{}) (Server, error) {
			b.hurry = hurry
			b.asked <- struct{}{}
			select {
			case s := <-b.next:
				if s.Conn == nil {
					return s, errors.New("no server is available")
				}
				return s, nil
			case <-ctx.Done():
				return Server{}, ctx.Err()
			}
		},
		Outcome: func(o Outcome, _ time.Duration) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.outcomes = append(b.outcomes, o)
		},
		Done: func() { close(b.done) },
	}
	if change != nil {
		change(&s)
	}
	if err := k.Add(s); err != nil {
		t.Fatal(err)
	}
	return b
}

// newServer creates the next server and makes it the current one.
func (b *bench) newServer() Server {
	b.t.Helper()
	ours, theirs := pairOf(b.t)
	b.server = theirs
	return Server{Conn: ours, Left: b.left, Release: func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.released++
	}}
}

// leave makes the session leave and its server die.
func (b *bench) leave() {
	close(b.left)
	b.left = make(chan struct{})
	b.server.Close()
}

func (b *bench) expectDone(outcomes ...Outcome) {
	b.t.Helper()
	select {
	case <-b.done:
	case <-time.After(patience):
		b.t.Fatal("the socket does not end")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.outcomes) != len(outcomes) {
		b.t.Fatalf("outcomes %v, want %v", b.outcomes, outcomes)
	}
	for i, o := range outcomes {
		if b.outcomes[i] != o {
			b.t.Fatalf("outcomes %v, want %v", b.outcomes, outcomes)
		}
	}
}

// clientFrame returns a frame as a client sends it.
func clientFrame(first byte, payload string) []byte {
	key := [4]byte{1, 2, 3, 4}
	b := []byte{first}
	switch n := len(payload); {
	case n < 126:
		b = append(b, 0x80|byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 0x80|127), uint64(n))
	}
	b = append(b, key[:]...)
	for i := range len(payload) {
		b = append(b, payload[i]^key[i%4])
	}
	return b
}

func text(s string) []byte { return clientFrame(frame.Fin|frame.Text, s) }

func send(t *testing.T, c net.Conn, b []byte) {
	t.Helper()
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
}

// readFrame reads one frame and returns its first byte and its payload.
func readFrame(t *testing.T, r io.Reader) (byte, string) {
	t.Helper()
	head := make([]byte, 2, frame.MaxHeader)
	if _, err := io.ReadFull(r, head); err != nil {
		t.Fatalf("read a frame: %v", err)
	}
	for {
		f, ok := frame.Parse(head)
		if ok {
			all := append(head, make([]byte, f.Length)...)
			if _, err := io.ReadFull(r, all[len(head):]); err != nil {
				t.Fatalf("read a frame: %v", err)
			}
			return f.First, string(f.Payload(all))
		}
		head = append(head, 0)
		if _, err := io.ReadFull(r, head[len(head)-1:]); err != nil {
			t.Fatalf("read a frame: %v", err)
		}
	}
}

func expectFrame(t *testing.T, r io.Reader, first byte, payload string) {
	t.Helper()
	if op, got := readFrame(t, r); op != first || got != payload {
		t.Fatalf("got frame %#x %.40q (%d bytes), want %#x %.40q", op, got, len(got), first, payload)
	}
}

const code1012 = "\x03\xf4"

// The socket continues with the next server. The bytes that the client sent meanwhile
// arrive once and in order, and Pings are answered.
func TestContinuesWithTheNextServer(t *testing.T) {
	b := start(t, func(s *Spec) { s.Policy.Tell = "moved" })
	send(t, b.conn, text("one"))
	expectFrame(t, b.server, frame.Fin|frame.Text, "one")
	send(t, b.server, frame.Server(frame.Text, []byte("uno")))
	expectFrame(t, b.client, frame.Fin|frame.Text, "uno")

	for range 2 {
		send(t, b.server, []byte{frame.Fin | frame.Text, 5, 'h', 'a'}) // the rest never comes
		b.leave()
		<-b.asked
		send(t, b.conn, text("two"))
		send(t, b.conn, clientFrame(frame.Fin|frame.Pong, "late"))
		send(t, b.conn, clientFrame(frame.Fin|frame.Ping, "there?"))
		expectFrame(t, b.client, frame.Fin|frame.Pong, "there?")
		send(t, b.conn, text("three"))
		b.next <- b.newServer()
		expectFrame(t, b.client, frame.Fin|frame.Text, "moved")
		expectFrame(t, b.server, frame.Fin|frame.Text, "two")
		expectFrame(t, b.server, frame.Fin|frame.Text, "three")
		send(t, b.conn, text("four"))
		expectFrame(t, b.server, frame.Fin|frame.Text, "four")
		send(t, b.server, frame.Server(frame.Text, []byte("cuatro")))
		expectFrame(t, b.client, frame.Fin|frame.Text, "cuatro")
	}
	send(t, b.server, frame.Closing(1000))
	expectFrame(t, b.client, frame.Fin|frame.Close, "\x03\xe8")
	b.server.Close()
	b.conn.Close()
	b.expectDone(Kept, Kept)
	if b.released != 3 {
		t.Errorf("%d of 3 servers were released", b.released)
	}
}

func TestTellsByPing(t *testing.T) {
	b := start(t, func(s *Spec) { s.Policy.Tell, s.Policy.Ping = "moved", true })
	b.leave()
	b.next <- b.newServer()
	expectFrame(t, b.client, frame.Fin|frame.Ping, "moved")
}

// If a server ends and its session has not left, the client's connection ends.
func TestServersOwnEndIsTheClients(t *testing.T) {
	b := start(t, nil)
	send(t, b.server, frame.Server(frame.Text, []byte("bye")))
	b.server.Close()
	expectFrame(t, b.client, frame.Fin|frame.Text, "bye")
	if n, err := b.client.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("%d bytes, %v", n, err)
	}
	b.conn.Close()
	b.expectDone()
}

// Between gateways only the mark means that the server itself ended the connection.
func TestMarkEndsAFarServer(t *testing.T) {
	b := start(t, func(s *Spec) { s.Server.Far = true })
	send(t, b.server, append(frame.Server(frame.Text, []byte("bye")), frame.Server(frame.End, nil)...))
	expectFrame(t, b.client, frame.Fin|frame.Text, "bye")
	if n, err := b.client.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("%d bytes, %v", n, err)
	}
	b.conn.Close()
	b.expectDone()

	b = start(t, func(s *Spec) { s.Server.Far = true })
	b.server.Close() // without a signal that the session left
	b.next <- b.newServer()
	send(t, b.conn, text("still here"))
	expectFrame(t, b.server, frame.Fin|frame.Text, "still here")
}

func TestPeerForward(t *testing.T) {
	forwarded := func(s *Spec) { s.PeerForward, s.Next, s.Policy = true, nil, holdfast.KeepSockets{} }
	t.Run("own end", func(t *testing.T) {
		b := start(t, forwarded)
		send(t, b.server, frame.Server(frame.Text, []byte("x")))
		b.server.Close()
		expectFrame(t, b.client, frame.Fin|frame.Text, "x")
		expectFrame(t, b.client, frame.Fin|frame.End, "")
		b.conn.Close()
		b.expectDone()
	})
	t.Run("leaves", func(t *testing.T) {
		b := start(t, forwarded)
		b.leave()
		if n, err := b.client.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("%d bytes, %v", n, err)
		}
		b.conn.Close()
		b.expectDone()
	})
	t.Run("stops", func(t *testing.T) {
		b := start(t, forwarded)
		b.stop()
		if n, err := b.client.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("%d bytes, %v", n, err)
		}
		b.conn.Close()
		b.expectDone()
	})
}

// A socket that cannot continue ends with 1012.
func TestEndsWith1012(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Spec)
		do     func(*bench)
		want   []Outcome
	}{
		{"stop", nil, func(b *bench) { b.stop() }, nil},
		{"time", func(s *Spec) { s.Policy.Time = 50 * time.Millisecond }, func(b *bench) { b.leave() }, []Outcome{Late}},
		{"refused", nil, func(b *bench) { b.leave(); b.next <- Server{} }, []Outcome{Late}},
		{"stop meanwhile", nil, func(b *bench) { b.leave(); <-b.asked; b.stop() }, []Outcome{Ended}},
		{"server's message", nil, func(b *bench) {
			send(b.t, b.server, []byte{frame.Text, 1, 'a'})
			expectFrame(b.t, b.client, frame.Text, "a")
			b.leave()
		}, []Outcome{Broken}},
		{"client's message", nil, func(b *bench) {
			send(b.t, b.conn, clientFrame(frame.Text, "a"))
			expectFrame(b.t, b.server, frame.Text, "a")
			b.leave()
		}, []Outcome{Broken}},
		{"client's long frame", nil, func(b *bench) {
			long := text(string(bytes.Repeat([]byte("a"), 2*bigBuffer)))
			send(b.t, b.conn, long[:bigBuffer+1])
			if _, err := io.ReadFull(b.server, make([]byte, bigBuffer)); err != nil {
				b.t.Error(err)
			}
			b.leave()
		}, []Outcome{Broken}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := start(t, c.change)
			c.do(b)
			expectFrame(t, b.client, frame.Fin|frame.Close, code1012)
			b.conn.Close()
			b.expectDone(c.want...)
		})
	}
}

// In the middle of a long frame no Close frame can be sent.
func TestLongFrameOfADeadServerIsCut(t *testing.T) {
	b := start(t, nil)
	send(t, b.server, append([]byte{frame.Fin | frame.Text, 127, 0, 0, 0, 0, 0, 2, 0, 0}, make([]byte, 100)...))
	if _, err := io.ReadFull(b.client, make([]byte, 110)); err != nil {
		t.Fatal(err)
	}
	b.leave()
	if n, err := b.client.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("%d bytes, %v", n, err)
	}
	b.conn.Close()
	b.expectDone(Broken)
}

// A client that sends more than the buffer holds waits, and no byte is lost.
func TestFullBufferWaits(t *testing.T) {
	b := start(t, nil)
	b.leave()
	<-b.asked
	const n = 200
	long := bytes.Repeat([]byte("x"), 3*bigBuffer)
	sent := make(chan error, 1)
	go func() {
		w := bufio.NewWriter(b.conn)
		for i := range n {
			w.Write(text(string(long[:i*50])))
		}
		w.Write(text(string(long)))
		sent <- w.Flush()
	}()
	b.next <- b.newServer()
	in := bufio.NewReader(b.server)
	for i := range n {
		expectFrame(t, in, frame.Fin|frame.Text, string(long[:i*50]))
	}
	expectFrame(t, in, frame.Fin|frame.Text, string(long))
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// A client that hangs up ends the search for the next server.
func TestClientGoesDuringTheSearch(t *testing.T) {
	b := start(t, nil)
	b.leave()
	<-b.asked
	b.conn.Close()
	b.expectDone(Client)
}

// After a client has gone, its server's connection ends within a bounded time.
func TestClientGoes(t *testing.T) {
	b := start(t, nil)
	send(t, b.conn, text("last"))
	b.conn.Close()
	expectFrame(t, b.server, frame.Fin|frame.Text, "last")
	if n, err := b.server.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("%d bytes, %v", n, err)
	}
	b.server.Close()
	b.expectDone()
}

func TestAddBeforeOpen(t *testing.T) {
	ours, _ := pairOf(t)
	srv, _ := pairOf(t)
	if err := new(Proxy).Add(Spec{Client: ours, Server: Server{Conn: srv}}); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}
