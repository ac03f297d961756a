package lab

import (
	"math/rand/v2"
	"net"
	"strconv"
)

// FreePort returns an address of the loopback, host:port, that has no listener now. Its port is
// below those of clients (ip_local_port_range, from 32768): otherwise a connection of any process
// could take it before the server listens. Any goroutine may call it.
func FreePort() (string, error) {
	var err error
	for range 100 {
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(10000+rand.IntN(20000)))); err == nil {
			defer l.Close()
			return l.Addr().String(), nil
		}
	}
	return "", err
}
