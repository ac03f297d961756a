// Package upstream sends HTTP/1.1 requests to the servers of sessions over kept-alive
// connections. The goroutine of the request writes it and reads its response. http.Transport
// has two more goroutines for each connection, and a request wakes both of them.
package upstream

import (
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
)

// Key tells connections apart. It names the epoch, so that no connection is reused for a
// later session at the same address.
type Key struct {
	Session holdfast.SessionKey
	Epoch   holdfast.Epoch
	Address string
}

// Config has the limits of a Pool. All of them are required.
type Config struct {
	IdlePerKey, IdleTotal int           // kept-alive connections without a request; see surplusTime
	IdleTime              time.Duration // that one is kept
	ResponseTimeout       time.Duration // from the end of a request to the end of its response's header
	ContinueTimeout       time.Duration // a body waits that long for 100 Continue (RFC 9110, 10.1.1)
	MaxHeaderBytes        int           // of a response, interim responses included
}

// surplusTime is how long connections over IdlePerKey are kept. Their server has just served
// requests on all of them at once, and opening another one for each request costs more than
// the request itself.
const surplusTime = time.Second

// Pool has the kept-alive connections. Any goroutine may call its methods.
type Pool struct {
	cfg Config

	mu     sync.Mutex
	idle   map[Key][]*pooled // the one used last is at the end
	total  int
	sweep  *time.Timer // closes old connections; nil if there are none
	closed bool
}

// New returns an empty pool.
func New(cfg Config) *Pool { return &Pool{cfg: cfg, idle: map[Key][]*pooled{}} }

// CloseIdle closes the connections without a request.
func (p *Pool) CloseIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, conns := range p.idle {
		for _, c := range conns {
			c.Close()
		}
		delete(p.idle, key)
	}
	p.total = 0
	p.stopLocked()
}

// Close closes the connections without a request now, and every other one after its request.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.CloseIdle()
}

func (p *Pool) stopLocked() {
	if p.sweep != nil {
		p.sweep.Stop()
		p.sweep = nil
	}
}

// take returns a connection that its server has not closed, or nil.
func (p *Pool) take(key Key) *pooled {
	for {
		c := p.pop(key)
		if c == nil || c.quiet() {
			return c
		}
		c.Close()
	}
}

func (p *Pool) pop(key Key) *pooled {
	p.mu.Lock()
	defer p.mu.Unlock()
	conns := p.idle[key]
	if len(conns) == 0 {
		return nil
	}
	c := conns[len(conns)-1]
	p.keepLocked(key, conns[:len(conns)-1])
	p.total--
	return c
}

func (p *Pool) keepLocked(key Key, conns []*pooled) {
	if len(conns) == 0 {
		delete(p.idle, key)
	} else {
		p.idle[key] = conns
	}
}

// put keeps a connection for another request, or closes it.
func (p *Pool) put(key Key, c *pooled) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.total >= p.cfg.IdleTotal {
		c.Close()
		return
	}
	c.idleSince = time.Now()
	p.idle[key] = append(p.idle[key], c)
	p.total++
	if p.sweep == nil {
		p.sweep = time.AfterFunc(min(p.cfg.IdleTime, surplusTime), p.closeOld)
	}
}

// closeOld closes connections that were idle for IdleTime, or for surplusTime over IdlePerKey.
func (p *Pool) closeOld() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sweep == nil {
		return // stopped meanwhile
	}
	now, surplus := time.Now(), false
	for key, conns := range p.idle {
		old := 0
		for old < len(conns) && p.isOld(now.Sub(conns[old].idleSince), len(conns)-old) {
			conns[old].Close()
			old++
		}
		surplus = surplus || len(conns)-old > p.cfg.IdlePerKey
		p.keepLocked(key, slices.Delete(conns, 0, old))
		p.total -= old
	}
	switch {
	case p.total == 0:
		p.sweep = nil
	case surplus:
		p.sweep.Reset(min(p.cfg.IdleTime/4, surplusTime))
	default:
		p.sweep.Reset(p.cfg.IdleTime / 4)
	}
}

// isOld reports whether a connection that is idle for d is closed. It is the one that was used
// first of those of its key that remain.
func (p *Pool) isOld(d time.Duration, remain int) bool {
	return d >= p.cfg.IdleTime || remain > p.cfg.IdlePerKey && d >= surplusTime
}

// CountedConn is a connection that counts the bytes written to it.
type CountedConn struct {
	net.Conn
	written atomic.Int64
}

// Write counts the bytes.
func (c *CountedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.written.Add(int64(n))
	return n, err
}

// Written returns how many bytes were written since the connection was opened. Any goroutine may
// call it.
func (c *CountedConn) Written() int64 { return c.written.Load() }

// pooled is a connection of a Pool.
type pooled struct {
	CountedConn
	raw       syscall.RawConn // nil: the connection is no socket
	mu        sync.Mutex      // guards deadline and arrived
	deadline  Deadline        // of reads
	arrived   bool            // the header of the response
	limit     int64           // bytes that may be read
	received  []byte          // that Read returns first; see Resume
	idleSince time.Time
}

func newConn(c net.Conn) *pooled {
	conn := &pooled{CountedConn: CountedConn{Conn: c}}
	if s, ok := c.(syscall.Conn); ok {
		conn.raw, _ = s.SyscallConn() // without it, Wait reports a closed connection by an error
	}
	return conn
}

// Read reads up to the limit.
func (c *pooled) Read(b []byte) (int, error) {
	if c.limit <= 0 {
		return 0, errHeaderTooLong
	}
	if int64(len(b)) > c.limit {
		b = b[:c.limit]
	}
	var n int
	var err error
	if len(c.received) > 0 {
		n = copy(b, c.received)
		c.received = c.received[n:]
	} else {
		n, err = c.Conn.Read(b)
	}
	c.limit -= int64(n)
	return n, err
}

// quiet reports whether the server has neither closed the connection nor sent anything on
// it, which it may not do without a request.
func (c *pooled) quiet() bool {
	if c.raw == nil {
		return true
	}
	quiet := false
	err := c.raw.Control(func(fd uintptr) {
		fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP}}
		n, err := unix.Poll(fds[:], 0)
		for err == unix.EINTR { // a signal was pending, such as one of Go's scheduler: nothing was found out
			n, err = unix.Poll(fds[:], 0)
		}
		quiet = n == 0 && err == nil
	})
	return quiet && err == nil
}

// await limits the time until the header of the response has arrived, unless it has already.
// The limit is up to a tenth longer than d, so that not every request sets a deadline.
func (c *pooled) await(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.arrived {
		return
	}
	if at, renew := c.deadline.Renew(d); renew {
		_ = c.SetReadDeadline(at) // fails on a closed connection only
	}
}

// Deadline is a deadline that many reads or writes share, so that not each of them sets one. The
// zero value is none. One goroutine at a time may use it.
type Deadline struct{ at time.Time }

// Renew returns the deadline to set, unless the last one is at least wait and at most a tenth
// more away.
func (d *Deadline) Renew(wait time.Duration) (at time.Time, renew bool) {
	least := time.Now().Add(wait)
	most := least.Add(wait / 10)
	renew = d.at.Before(least) || d.at.After(most)
	if renew {
		d.at = most
	}
	return d.at, renew
}

// arrive ends await's limit. If all of the response has arrived, nothing more is read, and the
// deadline stays for the next request.
func (c *pooled) arrive(all bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.arrived = true
	if !all {
		c.unlimitedLocked()
	}
}

// unlimited removes the deadline that an earlier request has left.
func (c *pooled) unlimited() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unlimitedLocked()
}

func (c *pooled) unlimitedLocked() {
	if c.deadline != (Deadline{}) {
		c.deadline = Deadline{}
		_ = c.SetReadDeadline(time.Time{})
	}
}

// Dial opens a connection for a request.
type Dial func(context.Context) (net.Conn, error)
