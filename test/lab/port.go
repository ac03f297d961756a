package lab

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// given are the ports that FreePort has returned. Until its server listens, a port is free and
// would be found again.
var given sync.Map

// FreePort returns an address of the loopback, host:port, that has no listener now, and that it
// has not returned before. Its port is below those of clients (ip_local_port_range, from 32768):
// otherwise a connection of any process could take it before the server listens. Any goroutine
// may call it.
func FreePort() (string, error) {
	err := errors.New("no port from 10000 to 29999 is left")
	for range 100 {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(10000+rand.IntN(20000)))
		if _, again := given.LoadOrStore(address, true); again {
			continue
		}
		var l net.Listener
		if l, err = net.Listen("tcp", address); err == nil {
			return address, l.Close()
		}
	}
	return "", err
}
