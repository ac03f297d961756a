package lab

import "net"

// FreePort returns an address of the loopback, host:port, that has no listener now. Any
// goroutine may call it.
func FreePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
