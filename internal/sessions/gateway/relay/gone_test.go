package relay

import (
	"crypto/tls"
	"net"
	"sync"
	"testing"
	"time"
)

// A reset of the client ends the pair, although the server neither sends nor ends
// anything.
func TestResetClientEndsThePair(t *testing.T) {
	r, _ := startRelay(t)
	for name, before := range map[string]func(t *testing.T, e ends){
		"at once": func(*testing.T, ends) {},
		"after a half close": func(t *testing.T, e ends) {
			e.client.CloseWrite()
			if got := readAll(t, e.upstream); len(got) != 0 {
				t.Errorf("got %x", got)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := add(t, r, "sockets", nil)
			write(t, e.client, []byte("hello"))
			readFull(t, e.upstream, []byte("hello"))
			before(t, e)
			reset(t, e.client)
			e.awaitDone(t)
		})
	}
}

// The same behind TLS, where a client ends its direction before it goes. Its kernel resets
// the connection when it no longer knows it, or when the server sends bytes.
func TestGoneClientBehindTLSEndsThePair(t *testing.T) {
	for name, leave := range map[string]func(client stream, server net.Conn){
		"after a half close": func(client stream, _ net.Conn) { reset(t, client) },
		"closed, and the server has sent bytes": func(client stream, server net.Conn) {
			client.Close()
			write(t, server, []byte("late"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			outer, server, done := copies(t, time.Millisecond)
			outer.CloseWrite()
			if got := readAll(t, server); len(got) != 0 {
				t.Errorf("got %x", got)
			}
			leave(outer, server)
			select {
			case <-done:
			case <-time.After(patience):
				t.Fatal("the pair is still open")
			}
		})
	}
}

// copies runs a pair, not of a WebSocket, that is served by goroutines.
func copies(t *testing.T, grace time.Duration) (outer stream, server *net.TCPConn, done chan struct{}) {
	outer, inner := tlsPair(t)
	up, server := tcpPair(t)
	up.SetDeadline(time.Time{})
	p := newCopyPair(Spec{Client: inner, Upstream: up}, &sync.Pool{New: func() any { return new([bufferSize]byte) }})
	p.grace = grace
	done = make(chan struct{})
	go func() { defer close(done); p.run() }()
	return outer, server, done
}

// A client that only ends its direction still receives, for as long as its server sends.
func TestHalfClosedClientStays(t *testing.T) {
	for name, end := range map[string]func(stream){
		"close_notify":         func(c stream) { c.CloseWrite() },
		"close_notify and FIN": func(c stream) { c.CloseWrite(); c.(*tls.Conn).NetConn().(*net.TCPConn).CloseWrite() },
	} {
		t.Run(name, func(t *testing.T) {
			outer, server, done := copies(t, time.Nanosecond)
			end(outer)
			if got := readAll(t, server); len(got) != 0 {
				t.Errorf("got %x", got)
			}
			write(t, server, []byte("still"))
			readFull(t, outer, []byte("still"))
			write(t, server, []byte("here"))
			server.Close()
			if got := readAll(t, outer); string(got) != "here" {
				t.Errorf("got %q", got)
			}
			<-done
		})
	}
}

// A WebSocket's client that has ended its direction has gone. A server that ignores that
// is bounded in time.
func TestServerThatIgnoresTheEnd(t *testing.T) {
	p, client, _ := byHand(t)
	client.CloseWrite()
	for !p.client.done {
		p.client.readable = true
		p.client.pump()
	}
	if p.closed || !p.gone {
		t.Fatalf("closed %v, bounded %v", p.closed, p.gone)
	}
	if _, timed := p.loop.timed[p]; !timed {
		t.Error("no timer is set")
	}
	p.timeUp()
	if !p.closed {
		t.Error("the pair is still open")
	}
}

// The same for a server that does not read what the client sent.
func TestServerThatReadsNothing(t *testing.T) {
	p, client, _ := byHand(t)
	for block := make([]byte, 1<<16); len(p.client.pending) == 0 || p.upstream.writable; {
		write(t, client, block)
		p.client.readable = true
		p.client.pump()
	}
	reset(t, client)
	p.client.event(0x8 | 0x10) // EPOLLERR, EPOLLHUP
	if p.closed || !p.gone || !p.upstream.done {
		t.Fatalf("closed %v, bounded %v", p.closed, p.gone)
	}
	p.timeUp()
	if !p.closed {
		t.Error("the pair is still open")
	}
}

// The same for pairs that are served by goroutines.
func TestGoroutinesEndWithTheirClient(t *testing.T) {
	for name, socket := range map[string]bool{"WebSocket": true, "reset": false} {
		for _, stuck := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				outer, inner := tlsPair(t)
				up, server := tcpPair(t)
				up.SetDeadline(time.Time{})
				p := newCopyPair(Spec{Client: inner, Upstream: up, WebSocket: socket}, &sync.Pool{New: func() any { return new([bufferSize]byte) }})
				p.grace = time.Millisecond
				done := make(chan struct{})
				go func() { defer close(done); p.run() }()
				if stuck { // the server reads nothing, so the client is blocked at some time
					outer.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
					for block := make([]byte, 1<<20); ; {
						if _, err := outer.Write(block); err != nil {
							break
						}
					}
					write(t, server, make([]byte, 1<<10)) // and sends some bytes
				}
				if !socket {
					reset(t, outer)
				} else {
					outer.Close()
				}
				if stuck {
					for range 100 { // bytes of a server without a client are answered with a reset
						if _, err := server.Write(make([]byte, 1<<16)); err != nil {
							break
						}
					}
				}
				select {
				case <-done:
				case <-time.After(patience):
					t.Fatal("the pair is still open")
				}
			})
		}
	}
}
