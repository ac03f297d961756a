package fleet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
)

// link is an agent's link to the etcd cluster: a TCP proxy for each member, and one
// switch for all. While the link is cut, no byte passes in either direction and no
// connection is closed, as with an unplugged cable. Bytes in transit arrive after heal.
type link struct {
	listeners []net.Listener
	targets   []string
	work      sync.WaitGroup
	dialer    net.Dialer
	life      context.Context
	end       context.CancelFunc

	mu    sync.Mutex
	open  chan struct{} // closed while bytes may pass
	conns map[net.Conn]struct{}
}

// newLink listens on host for each target, on consecutive ports from firstPort on.
func newLink(host string, firstPort int, targets []string) (*link, error) {
	l := &link{targets: targets, conns: map[net.Conn]struct{}{}, open: make(chan struct{})}
	l.life, l.end = context.WithCancel(context.Background())
	close(l.open)
	for i := range targets {
		ln, err := net.Listen("tcp", fmt.Sprintf("%s:%d", host, firstPort+i))
		if err != nil {
			l.close()
			return nil, err
		}
		l.listeners = append(l.listeners, ln)
	}
	return l, nil
}

// endpoints returns the addresses to connect to.
func (l *link) endpoints() []string {
	var out []string
	for _, ln := range l.listeners {
		out = append(out, ln.Addr().String())
	}
	return out
}

// start forwards connections until close.
func (l *link) start() {
	for i, ln := range l.listeners {
		l.work.Go(func() { l.serve(ln, l.targets[i]) })
	}
}

func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isOpen() {
		l.open = make(chan struct{})
	}
}

func (l *link) heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.isOpen() {
		close(l.open)
	}
}

func (l *link) isOpen() bool {
	select {
	case <-l.open:
		return true
	default:
		return false
	}
}

// pass waits while the link is cut. It returns false if the link is closed.
func (l *link) pass() bool {
	l.mu.Lock()
	open := l.open
	l.mu.Unlock()
	select {
	case <-open:
		return l.life.Err() == nil
	case <-l.life.Done():
		return false
	}
}

func (l *link) serve(ln net.Listener, target string) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return // closed
		}
		l.work.Go(func() { l.relay(c, target) })
	}
}

// relay forwards bytes between a connection and the target until either one ends.
func (l *link) relay(c net.Conn, target string) {
	if !l.keep(c) {
		return
	}
	defer l.drop(c)
	if !l.pass() {
		return
	}
	up, err := l.dialer.DialContext(l.life, "tcp", target)
	if err != nil || !l.keep(up) {
		return
	}
	defer l.drop(up)
	var both sync.WaitGroup
	both.Go(func() { l.copy(up, c) })
	both.Go(func() { l.copy(c, up) })
	both.Wait()
}

// copy forwards bytes in one direction. At its end it closes both connections.
func (l *link) copy(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if !l.pass() || n > 0 && !written(to, buf[:n]) || err != nil {
			return
		}
	}
}

func written(to net.Conn, b []byte) bool {
	_, err := to.Write(b)
	return err == nil
}

// keep registers a connection for close. After close it closes c and returns false.
func (l *link) keep(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.life.Err() != nil {
		c.Close()
		return false
	}
	l.conns[c] = struct{}{}
	return true
}

func (l *link) drop(c net.Conn) {
	c.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
}

// close ends all connections and returns when all goroutines of the link have ended.
func (l *link) close() error {
	l.end()
	var errs []error
	for _, ln := range l.listeners {
		errs = append(errs, ln.Close())
	}
	l.mu.Lock()
	for c := range l.conns {
		c.Close()
	}
	l.mu.Unlock()
	l.work.Wait()
	return errors.Join(errs...)
}
