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
