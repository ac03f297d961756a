package quic_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
)

// rebinding is a socket whose local port changes, as behind a router that forgets a mapping.
type rebinding struct {
	net.PacketConn
	mu  sync.Mutex
	now net.PacketConn
	in  chan packet
	end chan struct{}
}

type packet struct {
	b    []byte
	from net.Addr
}

func newRebinding() (*rebinding, error) {
	r := &rebinding{in: make(chan packet, 256), end: make(chan struct{})}
	return r, r.rebind()
}

// rebind opens another socket for what is sent from now on.
func (r *rebinding) rebind() error {
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	r.mu.Lock()
	old := r.now
	r.now = c
	if old == nil {
		r.PacketConn = c
	}
	r.mu.Unlock()
	go func() {
		b := make([]byte, 2048)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			select {
			case r.in <- packet{append([]byte(nil), b[:n]...), from}:
			case <-r.end:
				return
			}
		}
	}()
	if old != nil {
		return old.Close()
	}
	return nil
}

func (r *rebinding) WriteTo(b []byte, to net.Addr) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now.WriteTo(b, to)
}

func (r *rebinding) ReadFrom(b []byte) (int, net.Addr, error) {
	select {
	case p := <-r.in:
		return copy(b, p.b), p.from, nil
	case <-r.end:
		return 0, nil, net.ErrClosed
	}
}

func (r *rebinding) SetDeadline(time.Time) error     { return nil }
func (r *rebinding) SetReadDeadline(time.Time) error { return nil }
func (r *rebinding) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.end)
	return r.now.Close()
}

// asker asks over a connection, and returns the pid of the server that answers.
type asker func(context.Context) (int, error)

// protocol is what clients and servers speak over QUIC.
type protocol struct {
	name  string // in TLS
	asker func(*quic.Conn) asker
}

func echoes() protocol {
	return protocol{"echo", func(c *quic.Conn) asker {
		return func(ctx context.Context) (int, error) { return askEcho(ctx, c) }
	}}
}

// client is one connection.
type client struct {
	*quic.Conn
	socket *rebinding
	tr     *quic.Transport
	ask    asker
}

func dial(ctx context.Context, address net.Addr, p protocol) (*client, error) {
	s, err := newRebinding()
	if err != nil {
		return nil, err
	}
	tr := &quic.Transport{Conn: s}
	c, err := tr.Dial(ctx, address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{p.name}}, &quic.Config{MaxIdleTimeout: 20 * time.Second, HandshakeIdleTimeout: 10 * time.Second})
	if err != nil {
		return nil, errors.Join(err, s.Close(), tr.Close())
	}
	return &client{c, s, tr, p.asker(c)}, nil
}

func (c *client) end() {
	_ = c.CloseWithError(0, "") // the server need not hear it
	_ = c.socket.Close()        // without it, the transport would go on to read
	_ = c.tr.Close()
}

func askEcho(ctx context.Context, c *quic.Conn) (int, error) {
	s, err := c.OpenStreamSync(ctx)
	if err != nil {
		return 0, err
	}
	if d, ok := ctx.Deadline(); ok {
		_ = s.SetDeadline(d)
	}
	if _, err := io.WriteString(s, "hello"); err != nil {
		return 0, err
	}
	s.Close()
	b, err := io.ReadAll(s)
	if err != nil {
		return 0, err
	}
	var pid int
	if n, err := fmt.Sscanf(string(b), "%d hello", &pid); n != 1 {
		return 0, fmt.Errorf("the answer is %q: %w", b, err)
	}
	return pid, nil
}

// load counts what clients see.
type load struct {
	address                 net.Addr
	protocol                protocol
	done, migrated, spanned atomic.Int64
	running                 sync.WaitGroup
	stop                    chan struct{}

	mu       sync.Mutex // of the following
	failed   []error
	reloaded chan struct{} // closed by the next reload
}

func newLoad(address net.Addr, p protocol) *load {
	return &load{address: address, protocol: p, stop: make(chan struct{}), reloaded: make(chan struct{})}
}

// run does one again and again until end is called.
func (l *load) run(one func() error) {
	l.running.Go(func() {
		for {
			select {
			case <-l.stop:
				return
			default:
			}
			if err := one(); err != nil {
				l.mu.Lock()
				l.failed = append(l.failed, err)
				l.mu.Unlock()
			}
			l.done.Add(1)
		}
	})
}

// next is closed by the next reload.
func (l *load) next() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reloaded
}

// reload tells the clients that the server has been reloaded.
func (l *load) reload() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.reloaded)
	l.reloaded = make(chan struct{})
}

// end ends the clients.
func (l *load) end() {
	close(l.stop)
	l.reload()
	l.running.Wait()
}

// report fails the test for the clients that failed.
func (l *load) report(t *testing.T) {
	t.Helper()
	for i, err := range l.failed {
		if i == 10 {
			t.Fatalf("and %d more", len(l.failed)-i)
		}
		t.Error("a client:", err)
	}
}

const patience = 15 * time.Second

// short connects, asks, and ends.
func (l *load) short() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := dial(ctx, l.address, l.protocol)
	if err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	defer c.end()
	began := time.Now()
	if _, err = c.ask(ctx); err != nil {
		return fmt.Errorf("%v after its handshake: %w", time.Since(began), err)
	}
	return nil
}

// long stays connected over a reload, changes its address, and asks the same server again.
func (l *load) long() error {
	reloaded := l.next()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := dial(ctx, l.address, l.protocol)
	if err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	defer c.end()
	began := time.Now()
	first, err := c.ask(ctx)
	if err != nil {
		return fmt.Errorf("%v after its handshake: %w", time.Since(began), err)
	}
	select {
	case <-reloaded:
	case <-ctx.Done():
		return nil
	}
	ctx, cancel = context.WithTimeout(context.Background(), patience)
	defer cancel()
	for range 2 { // a connection of the server before, or of the present one
		if err := c.socket.rebind(); err != nil {
			return err
		}
		pid, err := c.ask(ctx)
		if err != nil {
			return fmt.Errorf("after its address has changed: %w", err)
		} else if pid != first {
			return fmt.Errorf("process %d answered for process %d", pid, first)
		}
		l.migrated.Add(1)
	}
	l.spanned.Add(1)
	return nil
}
