package portnode

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/test/poll"
	"holdfast/test/serve"
)

// moves counts what a connection tells its session.
type moves struct{ byData, data atomic.Int32 }

func (m *moves) ByData(bool)                   { m.byData.Add(1) }
func (m *moves) Data(holdfast.WakeReason) bool { m.data.Add(1); return true }
func (m *moves) Control() bool                 { return true }
func (m *moves) Suspending() <-chan struct{}   { return nil }

// one is the sessions of a node that has alice at an address.
type one struct {
	address string
	left    chan struct{}
	held    int
	moves   *moves
}

func (o *one) Join(ctx context.Context, key holdfast.SessionKey) (holdfast.Route, func(), error) {
	if key != "alice" {
		return holdfast.Route{}, nil, holdfast.ErrNotFound
	}
	o.held++
	r := holdfast.Route{Key: key, Address: o.address, Epoch: 1, Left: o.left}
	if o.moves != nil {
		r.Activity = o.moves
	}
	return r, func() { o.held-- }, ctx.Err()
}

// echo answers each connection with its input, after its end.
func echo(t *testing.T) int {
	t.Helper()
	address := serve.TCP(t, func(c net.Conn) {
		b, _ := io.ReadAll(c)
		_, _ = c.Write(b)
	})
	return int(netip.MustParseAddrPort(address).Port())
}

func TestDialPort(t *testing.T) {
	port := echo(t)
	s := &one{address: "127.0.0.1:1", left: make(chan struct{})}
	n := New(s, prometheus.NewRegistry())
	c, err := n.DialPort(t.Context(), "alice", port)
	if err != nil {
		t.Fatal(err)
	}
	if open := testutil.ToFloat64(n.open); open != 1 || s.held != 1 {
		t.Errorf("%v connections are counted, %d held", open, s.held)
	}
	if _, err := io.WriteString(c, "hello"); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(c); err != nil || string(b) != "hello" {
		t.Errorf("%q, %v", b, err)
	}
	c.Close()
	c.Close()
	if open := testutil.ToFloat64(n.open); open != 0 || s.held != 0 {
		t.Errorf("%v connections are counted, %d held", open, s.held)
	}

	var refused *api.Error
	if _, err := n.DialPort(t.Context(), "alice", 1); !errors.As(err, &refused) || refused.Code != api.CodePortRefused || !strings.Contains(refused.Message, "port 1") {
		t.Errorf("a closed port: %v", err)
	}
	if _, err := n.DialPort(t.Context(), "bob", port); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("no session: %v", err)
	}
	for result, want := range map[string]float64{"opened": 1, "refused": 1, "failed": 1} {
		if got := testutil.ToFloat64(n.total.WithLabelValues(result)); got != want {
			t.Errorf("%s: %v, want %v", result, got, want)
		}
	}
}

// A connection tells a session that sleeps without data when it carries data.
func TestDataOfAForward(t *testing.T) {
	port := echo(t)
	s := &one{address: "127.0.0.1:1", left: make(chan struct{}), moves: &moves{}}
	c, err := New(s, prometheus.NewRegistry()).DialPort(t.Context(), "alice", port)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if n, data := s.moves.byData.Load(), s.moves.data.Load(); n != 1 || data != 0 {
		t.Errorf("ByData was called %d times, Data %d times", n, data)
	}
	if _, err := io.WriteString(c, "hello"); err != nil {
		t.Fatal(err)
	}
	sent := s.moves.data.Load()
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(c); err != nil || string(b) != "hello" || sent != 1 || s.moves.data.Load() < 2 {
		t.Errorf("%q, %v; Data was called %d times, %d after the write", b, err, s.moves.data.Load(), sent)
	}
}

// A connection ends with its session, and says so.
func TestConnectionOfASessionThatLeaves(t *testing.T) {
	port := echo(t)
	s := &one{address: "127.0.0.1:1", left: make(chan struct{})}
	n := New(s, prometheus.NewRegistry())
	c, err := n.DialPort(t.Context(), "alice", port)
	if err != nil {
		t.Fatal(err)
	}
	close(s.left)
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, holdfast.ErrNotFound) || !strings.Contains(err.Error(), "alice has left") {
		t.Errorf("read: %v", err)
	}
	poll.Until(t, "the connection is released", func() bool { return testutil.ToFloat64(n.open) == 0 })
	if _, err := n.DialPort(t.Context(), "alice", port); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("dialled to a session that has left: %v", err)
	}
}
