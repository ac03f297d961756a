package client_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"testing"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
	"holdfast/test/poll"
)

// carried is a connection that Carry joins with a port.
type carried struct {
	*net.TCPConn
	ended chan error
}

func carry(t *testing.T, ctx context.Context, c *client.Client, port int) carried {
	t.Helper()
	to, err := c.DialPort(ctx, "alice", port)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ours, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- to.Carry(ctx, theirs.(*net.TCPConn))
		theirs.Close()
	}()
	t.Cleanup(func() { ours.Close() })
	return carried{ours.(*net.TCPConn), ended}
}

// Each direction of a forwarded connection ends by itself, whichever ends first.
func TestForwardCarriesBothDirections(t *testing.T) {
	c, _ := agent(t, started(t, "alice"))
	ctx := within(t)
	text := make([]byte, 3<<20)
	rand.Read(text)

	echo := carry(t, ctx, c, 7)
	go func() {
		_, _ = echo.Write(text)
		_ = echo.CloseWrite()
	}()
	if b, err := io.ReadAll(echo); err != nil || !bytes.Equal(b, text) {
		t.Errorf("%d of %d bytes came back, %v", len(b), len(text), err)
	}
	if err := <-echo.ended; err != nil {
		t.Error(err)
	}

	first := carry(t, ctx, c, 13)
	if b, err := io.ReadAll(first); err != nil || string(b) != "now" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := first.Write(text); err != nil { // the port reads on
		t.Error(err)
	}
	_ = first.CloseWrite()
	if err := <-first.ended; err != nil {
		t.Error(err)
	}
}

func TestForwardErrors(t *testing.T) {
	c, _ := agent(t, started(t, "alice"))
	ctx := within(t)
	if _, err := c.DialPort(ctx, "missing", 7); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("no session: %v", err)
	}
	for port, want := range map[int]api.Code{9: api.CodePortRefused, 0: api.CodeBadRequest, 65536: api.CodeBadRequest, -1: api.CodeBadRequest} {
		var e *api.Error
		if _, err := c.DialPort(ctx, "alice", port); !errors.As(err, &e) || e.Code != want {
			t.Errorf("port %d: %v", port, err)
		}
	}
	broken := carry(t, ctx, c, 20)
	if _, err := broken.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := <-broken.ended; err == nil {
		t.Error("a connection that the port resets ends without an error")
	}
}

// If one end of a forwarded connection goes, the other end goes, even if it is busy.
func TestForwardHangUp(t *testing.T) {
	for _, side := range []string{"program", "client", "agent"} {
		c, stop := agent(t, started(t, "alice"))
		ctx, cancel := context.WithCancel(within(t))
		busy := carry(t, ctx, c, 19)
		if _, err := io.ReadFull(busy, make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
		switch side {
		case "program":
			_ = busy.SetLinger(0)
			busy.Close()
		case "client":
			cancel()
		case "agent":
			go func() { _, _ = io.Copy(io.Discard, busy) }() // a program that does not read learns it later
			stop()
		}
		if err := <-busy.ended; err == nil {
			t.Errorf("%s hung up, and that was no error", side)
		}
		cancel()
	}
}

// Forwarded connections have a bound of their own, so that they keep no exec away.
func TestForwardsAreBounded(t *testing.T) {
	const bound = 512
	c, _ := agent(t, started(t, "alice"))
	ctx := within(t)
	var open []*client.Port
	for range bound {
		p, err := c.DialPort(ctx, "alice", 7)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, p)
	}
	if _, err := c.DialPort(ctx, "alice", 7); !errors.Is(err, holdfast.ErrBusy) {
		t.Errorf("connection %d: %v", bound+1, err)
	}
	if _, err := c.Exec(ctx, "alice", api.Exec{Command: []string{"echo"}, Stdout: io.Discard}); err != nil {
		t.Errorf("exec beside them: %v", err)
	}
	for _, p := range open {
		p.Close()
	}
	poll.Until(t, "a place is free", func() bool {
		p, err := c.DialPort(ctx, "alice", 7)
		if err == nil {
			p.Close()
		}
		return err == nil
	})
}
