package migrate_test

import (
	"context"
	"net"
	"os"
	"strings"
	"testing"

	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/migrate"
	"holdfast/internal/hosts/protect/protecttest"
	"holdfast/test/lab/labtest"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// listen listens with SO_REUSEPORT, like servers whose reload overlaps.
func listen(t *testing.T, address string, reuseport bool) net.Listener {
	t.Helper()
	return protecttest.Listen(t, "tcp", address, reuseport, false)
}

func target(t *testing.T, address string, overlap bool) protect.Target {
	t.Helper()
	as := protecttest.Addresses(t, address)
	s, err := protect.NewSockets(as)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s.Target(protect.Spec{Addresses: as, Overlap: overlap})
}

// Connections that the old server has not accepted when it closes move to the new one.
func TestQueueMoves(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it needs root, and a network namespace of its own")
	}
	before := protecttest.Look(t)
	old := listen(t, "127.0.0.1:0", true) // and accepts nothing
	address := old.Addr().String()
	h, err := migrate.Backend{}.Hold(t.Context(), target(t, address, true))
	if err != nil {
		t.Fatal(err)
	}
	const n = 20
	var clients []net.Conn
	for range n {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		clients = append(clients, c)
	}
	fresh := listen(t, address, true)
	old.Close()
	for range n {
		c, err := fresh.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("x")); err != nil {
			t.Error(err)
		}
		c.Close()
	}
	for _, c := range clients {
		if got, err := c.Read(make([]byte, 1)); got != 1 {
			t.Error("a client:", err)
		}
	}
	if err := h.Release(t.Context()); err != nil {
		t.Error(err)
	}
	protecttest.NothingLeft(t, before)
}

func TestProbe(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it needs root, and a network namespace of its own")
	}
	with, without := listen(t, "127.0.0.1:0", true), listen(t, "127.0.0.1:0", false)
	for _, c := range []struct {
		l       net.Listener
		overlap bool
		why     string // "" for none
	}{
		{with, true, ""},
		{with, false, "--overlap"},
		{without, true, "SO_REUSEPORT"},
	} {
		err := migrate.Backend{}.Probe(context.Background(), target(t, c.l.Addr().String(), c.overlap))
		if (err == nil) != (c.why == "") || err != nil && !strings.Contains(err.Error(), c.why) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
