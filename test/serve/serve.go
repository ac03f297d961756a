// Package serve has servers for tests.
package serve

import (
	"net"
	"testing"
)

// TCP listens on loopback until the test ends, and calls handle for each connection in a
// goroutine of its own. It closes the connection when handle returns. TCP does not wait for
// these goroutines. The caller is the test's goroutine.
func TCP(t testing.TB, handle func(net.Conn)) (address string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				handle(c)
			}()
		}
	}()
	return ln.Addr().String()
}

// Pair returns both ends of a TCP connection over loopback, which are closed when the test
// ends. The caller is the test's goroutine.
func Pair(t testing.TB) (dialed, accepted *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	d, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	a, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return d.(*net.TCPConn), a.(*net.TCPConn)
}
