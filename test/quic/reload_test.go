package quic_test

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/protect"
)

var (
	reloads    = flag.Int("reloads", 2, "reloads of the server")
	handshakes = flag.Int("handshakes", 200, "handshakes, at least")
	pause      = flag.Duration("pause", 100*time.Millisecond, "pause between two reloads")
	limit      = flag.Duration("for", 5*time.Minute, "end after this time with what there is")
	without    = flag.Bool("without", false, "reload without protect, to compare")
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

// client is one connection.
type client struct {
	*quic.Conn
	socket *rebinding
	tr     *quic.Transport
}

func dial(ctx context.Context, address net.Addr) (*client, error) {
	s, err := newRebinding()
	if err != nil {
		return nil, err
	}
	tr := &quic.Transport{Conn: s}
	c, err := tr.Dial(ctx, address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"echo"}}, &quic.Config{MaxIdleTimeout: 20 * time.Second, HandshakeIdleTimeout: 10 * time.Second})
	if err != nil {
		return nil, errors.Join(err, s.Close(), tr.Close())
	}
	return &client{c, s, tr}, nil
}

func (c *client) end() {
	_ = c.CloseWithError(0, "") // the server need not hear it
	_ = c.socket.Close()        // without it, the transport would go on to read
	_ = c.tr.Close()
}

// ask returns the pid of the server that answers.
func (c *client) ask(ctx context.Context) (int, error) {
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
	address                       net.Addr
	done, migrated, spanned, late atomic.Int64
	mu                            sync.Mutex
	failed                        []error
}

func (l *load) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed = append(l.failed, err)
}

const patience = 15 * time.Second

// short connects, asks, and ends.
func (l *load) short() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := dial(ctx, l.address)
	if err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	defer c.end()
	_, err = c.ask(ctx)
	return err
}

// long stays connected over a reload, changes its address, and asks the same server again.
func (l *load) long(reloaded <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := dial(ctx, l.address)
	if err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	defer c.end()
	first, err := c.ask(ctx)
	if err != nil {
		return err
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

// A server of QUIC is reloaded again and again while clients connect: a new process binds the
// port beside the old one, which ends when its connections have. No handshake fails, and no
// connection of the old process, also when the client's address changes.
func TestReloads(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("it needs root")
	}
	free, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := free.LocalAddr()
	free.Close()
	pid, err := start(at.String())
	if err != nil {
		t.Fatal(err)
	}
	pidfile := filepath.Join(t.TempDir(), "pid")
	if err := os.WriteFile(pidfile, []byte(strconv.Itoa(pid)), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if b, err := os.ReadFile(pidfile); err == nil {
			if pid, err := strconv.Atoi(string(b)); err == nil {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	})
	l := &load{address: at}
	var running sync.WaitGroup
	stop := make(chan struct{})
	var mu sync.Mutex
	reloaded := make(chan struct{})
	work := func(one func() error) {
		running.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := one(); err != nil {
					l.fail(err)
				}
				l.done.Add(1)
			}
		})
	}
	for range 4 {
		work(l.short)
	}
	for range 4 {
		work(func() error {
			mu.Lock()
			next := reloaded
			mu.Unlock()
			return l.long(next)
		})
	}
	command := []string{"/proc/self/exe", roleReload, pidfile, at.String()}
	dir, held, lost, stays, count := t.TempDir(), 0, 0, 0, 0
	flows := protect.AutoFlows // once: a server that is slow for load alone is not recognised
	for end := time.Now().Add(*limit); time.Now().Before(end) && (count < *reloads || int(l.done.Load()) < *handshakes); count++ {
		if *without {
			if err := reload(pidfile, at.String()); err != nil {
				t.Fatal(err)
			}
		} else {
			r, err := protect.Run(t.Context(), protect.Options{
				Spec: protect.Spec{
					Addresses: []protect.Address{{Port: uint16(at.(*net.UDPAddr).Port)}}, UDP: flows,
					UDPFor: time.Minute, Overlap: true, Limit: time.Minute,
				},
				Drain: 5 * time.Second, Wait: time.Minute, Command: command, Stdout: os.Stderr, Stderr: os.Stderr,
				Keeper: []string{"/proc/self/exe", roleKeeper}, LockDir: dir, Log: quiet(),
			})
			if err != nil {
				t.Error(err)
				break // with the figures until now
			}
			d := r.Released.Datagrams
			if d == nil || d.Flows != protect.ByConnection {
				t.Fatalf("QUIC was not recognised: %+v", d)
			}
			flows = protect.ByConnection
			held, lost = held+d.Held, lost+d.Lost
			if d.Stays {
				stays++
			}
		}
		mu.Lock()
		close(reloaded)
		reloaded = make(chan struct{})
		mu.Unlock()
		time.Sleep(*pause)
	}
	close(stop)
	mu.Lock()
	close(reloaded)
	mu.Unlock()
	running.Wait()
	t.Logf("%d reloads, %d handshakes, %d failed; %d connections lived through a reload, and %d changes of their addresses; %d datagrams held, %d lost; an old server stayed %d times",
		count, l.done.Load(), len(l.failed), l.spanned.Load(), l.migrated.Load(), held, lost, stays)
	for i, err := range l.failed {
		if i == 5 {
			t.Fatalf("and %d more", len(l.failed)-i)
		}
		t.Error("a client:", err)
	}
	if l.migrated.Load() == 0 {
		t.Error("no address changed")
	}
}
