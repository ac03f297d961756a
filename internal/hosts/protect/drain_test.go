package protect_test

import (
	"context"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/protecttest"
)

// listenDeferred listens on a free port of loopback; deferred leaves a handshake
// unfinished until data comes (tcp(7), TCP_DEFER_ACCEPT).
func listenDeferred(t *testing.T, deferred int) net.Listener {
	t.Helper()
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if e := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, deferred)
		}); e != nil {
			return e
		}
		return err
	}}
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func dial(t *testing.T, l net.Listener) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// drainTo drains until the expected number of connections is left.
func drainTo(t *testing.T, s *protect.Sockets, overlap bool, want int) {
	t.Helper()
	limit := time.Nanosecond
	if want == 0 {
		limit = protecttest.Patience
	}
	d, err := s.Drain(limit, overlap, nil)
	if err != nil || d.Left != want {
		t.Errorf("overlap %v: drained: %+v, %v; %d should be left", overlap, d, err, want)
	}
}

func socketsOf(t *testing.T, l net.Listener) *protect.Sockets {
	t.Helper()
	s, err := protect.NewSockets(protecttest.Addresses(t, l.Addr().String()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// A server that overlaps with the next one answers the connections that it has accepted.
// The other ones would be reset when its listener closes.
func TestDrainOverlapping(t *testing.T) {
	l := listenDeferred(t, 0)
	s := socketsOf(t, l)
	client := dial(t, l)
	if _, err := client.Write([]byte("a request")); err != nil {
		t.Fatal(err)
	}
	drainTo(t, s, true, 1)
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	drainTo(t, s, true, 0)
	drainTo(t, s, false, 1)
}

// A client on this host that has not read the server's last step is in a handshake, though it has
// been silent for longer than a step takes.
func TestDrainWaitsForAClientsTurn(t *testing.T) {
	l := listenDeferred(t, 0)
	s := socketsOf(t, l)
	client := dial(t, l)
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	buf := make([]byte, 64)
	if _, err := client.Write([]byte("first step")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(buf); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("second step")); err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond) // a client in its turn would have answered
	drainTo(t, s, false, 1)
	if _, err := client.Read(buf); err != nil {
		t.Fatal(err)
	}
	drainTo(t, s, false, 0)
}

// The drain waits for the handshakes that the server has begun: if the listener closed,
// the kernel would reset them. Later handshakes are held elsewhere.
func TestDrainHandshakes(t *testing.T) {
	l := listenDeferred(t, 60)
	s := socketsOf(t, l)
	first := dial(t, l)
	drainTo(t, s, true, 1)
	ended := make(chan protect.Drained, 1)
	go func() {
		d, err := s.Drain(protecttest.Patience, true, nil)
		if err != nil {
			t.Error(err)
		}
		ended <- d
	}()
	time.Sleep(100 * time.Millisecond) // its first look is over; if not, less is tested
	dial(t, l)
	if _, err := first.Write([]byte("a request")); err != nil {
		t.Fatal(err)
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if d := <-ended; d.Left != 0 {
		t.Errorf("drained: %+v", d)
	}
}
