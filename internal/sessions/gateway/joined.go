package gateway

import (
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// joinTime is how long a write waits for the next one.
const joinTime = time.Millisecond

// joinedConn is the TCP connection below TLS. It sends two writes in one system call if joinNext has
// announced the second one: with HTTP/2, net/http writes the header of a response, and then its body.
type joinedConn struct {
	net.Conn
	announced atomic.Bool

	mu    sync.Mutex  // guards the rest, and held by each write
	held  []byte      // the first of two writes
	timer *time.Timer // nil before the first held write
	err   error       // of the timer's write
}

// joinNext announces that the next write of the request's connection is followed by another one. Any
// goroutine may call it.
func joinNext(r *http.Request) {
	if secure, ok := r.Context().Value(connKey{}).(*tls.Conn); ok {
		if j, ok := secure.NetConn().(*joinedConn); ok {
			j.announced.Store(true)
		}
	}
}

// Write implements net.Conn. The error of a held write is that of the next one.
func (j *joinedConn) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case j.err != nil:
		return 0, j.err
	case len(j.held) > 0:
		j.timer.Stop()
		j.held = append(j.held, b...)
		if err := j.sendHeld(); err != nil {
			return 0, err
		}
	case j.announced.Swap(false):
		j.held = append(j.held, b...)
		if j.timer == nil {
			j.timer = time.AfterFunc(joinTime, j.late)
		} else {
			j.timer.Reset(joinTime)
		}
	default:
		return j.Conn.Write(b)
	}
	return len(b), nil
}

// late sends a write that no other one has followed.
func (j *joinedConn) late() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.held) > 0 {
		j.err = j.sendHeld()
	}
}

func (j *joinedConn) sendHeld() error {
	_, err := j.Conn.Write(j.held)
	j.held = j.held[:0]
	if cap(j.held) > firstRead {
		j.held = nil
	}
	return err
}

// SyscallConn implements syscall.Conn, for relay.Socket.
func (j *joinedConn) SyscallConn() (syscall.RawConn, error) {
	return j.Conn.(syscall.Conn).SyscallConn() // every listener in use is a TCP listener
}
