package reload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// maxOpen bounds the connections that are open at once. Further clients begin when others
// have ended. Their wait counts from the time at which they were due.
const maxOpen = 8192

// clientLimit is the maximum wait of a client for its answer.
const clientLimit = 10 * time.Second

// load is a load of clients. Each makes a connection, sends one request and reads the answer
// to its end.
type load struct {
	to     netip.AddrPort // IPv4
	answer string         // the expected body
	// rate is the number of clients that are due per second (open loop). With 0 a
	// client begins when another has ended (closed loop).
	rate  float64
	conns int           // the maximum of concurrent clients; at most maxOpen
	limit time.Duration // maximum wait of a client for its answer
	// more is called before each client with the number of clients before it.
	// false ends the load.
	more func(begun int) bool
}

// client is one that is connected or connecting.
type client struct {
	fd   int
	due  time.Duration
	sent bool
	got  [512]byte
	n    int
	slot int32
	next *client // in the order in which they began
	gone bool    // has ended, and is still in the list
}

// runner is a load that runs. It belongs to one goroutine.
type runner struct {
	load
	epoll, timer int
	began        time.Time
	clients      []*client // by slot; nil where the slot is free
	free         []int32
	open         int
	first, last  *client
	request      []byte
	rec          *recording
}

// run makes the load until it is over and every client has an answer or gave up.
func (l load) run(ctx context.Context) (_ *recording, err error) {
	if !l.to.Addr().Is4() || l.conns < 1 || l.conns > maxOpen {
		return nil, fmt.Errorf("load on %s with %d connections: not supported", l.to, l.conns)
	}
	// The goroutine keeps this thread: the Go scheduler's thread switches would add
	// to the measured waits.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r := &runner{load: l, rec: newRecording(), request: fmt.Appendf(nil, "GET / HTTP/1.0\r\nHost: %s\r\n\r\n", l.to)}
	if r.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unix.Close(r.epoll)) }()
	if err := r.startTimer(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unix.Close(r.timer)) }()
	defer r.closeAll()
	for i := range l.conns {
		r.clients, r.free = append(r.clients, nil), append(r.free, int32(l.conns-1-i))
	}
	r.began = time.Now()
	r.rec.began = r.began
	for begun, ended := 0, false; ; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		now := time.Since(r.began)
		for !ended && r.open < r.conns {
			due := now
			if r.rate > 0 {
				due = time.Duration(float64(begun) / r.rate * float64(time.Second))
			}
			if due > now {
				break
			}
			if ended = !r.more(begun); !ended {
				r.begin(due)
				begun++
			}
		}
		if ended && r.open == 0 {
			r.rec.took = time.Since(r.began)
			return r.rec, nil
		}
		if err := r.wait(); err != nil {
			return nil, err
		}
		r.expire()
	}
}

// startTimer wakes the loop for every client that is due, and often enough to notice
// the end of ctx.
func (r *runner) startTimer() (err error) {
	if r.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK); err != nil {
		return err
	}
	every := 10 * time.Millisecond
	if r.rate > 0 {
		every = min(every, time.Duration(float64(time.Second)/r.rate))
	}
	tick := unix.NsecToTimespec(every.Nanoseconds())
	if err := unix.TimerfdSettime(r.timer, 0, &unix.ItimerSpec{Interval: tick, Value: tick}, nil); err != nil {
		return errors.Join(err, unix.Close(r.timer))
	}
	return unix.EpollCtl(r.epoll, unix.EPOLL_CTL_ADD, r.timer, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: -1})
}

// begin starts a client.
func (r *runner) begin(due time.Duration) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		r.rec.add(due, time.Since(r.began), reasonOf(err))
		return
	}
	err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(r.to.Port()), Addr: r.to.Addr().As4()})
	slot := r.free[len(r.free)-1]
	if err == nil || err == unix.EINPROGRESS {
		err = unix.EpollCtl(r.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{
			Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET, Fd: slot,
		})
	}
	if err != nil {
		unix.Close(fd)
		r.rec.add(due, time.Since(r.began), reasonOf(err))
		return
	}
	c := &client{fd: fd, due: due, slot: slot}
	r.free = r.free[:len(r.free)-1]
	r.clients[slot] = c
	r.open++
	if r.last == nil {
		r.first = c
	} else {
		r.last.next = c
	}
	r.last = c
}

// wait sleeps until an event arrives and steps the clients that it belongs to.
func (r *runner) wait() error {
	var events [256]unix.EpollEvent
	n, err := unix.EpollWait(r.epoll, events[:], -1)
	if err == unix.EINTR {
		return nil
	}
	if err != nil {
		return fmt.Errorf("wait for clients: %w", err)
	}
	for _, e := range events[:n] {
		if e.Fd < 0 {
			var b [8]byte
			_, _ = unix.Read(r.timer, b[:]) // the number of expirations does not matter
			continue
		}
		if c := r.clients[e.Fd]; c != nil {
			r.step(c)
		}
	}
	return nil
}

// step continues a client as far as possible without blocking.
func (r *runner) step(c *client) {
	if !c.sent {
		switch _, err := unix.Write(c.fd, r.request); err {
		case nil:
			c.sent = true
		case unix.EAGAIN, unix.ENOTCONN:
			return // connecting
		default:
			r.end(c, r.whyWriteFailed(c, err))
			return
		}
	}
	for {
		n, err := unix.Read(c.fd, c.got[c.n:])
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return
		case err != nil:
			r.end(c, reasonOf(err))
			return
		case n == 0:
			r.end(c, r.judge(c))
			return
		default:
			if c.n += n; c.n == len(c.got) {
				r.end(c, wrongAnswer)
				return
			}
		}
	}
}

// whyWriteFailed prefers the socket's pending error: after a refused connection, a
// write returns only EPIPE.
func (r *runner) whyWriteFailed(c *client, err error) reason {
	if code, e := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_ERROR); e == nil && code != 0 {
		return reasonOf(unix.Errno(code))
	}
	return reasonOf(err)
}

// judge checks a complete answer.
func (r *runner) judge(c *client) reason {
	b := c.got[:c.n]
	switch {
	case c.n == 0:
		return noAnswer
	case !bytes.HasPrefix(b, []byte("HTTP/1.1 200 ")) && !bytes.HasPrefix(b, []byte("HTTP/1.0 200 ")):
		return wrongStatus
	case !bytes.HasSuffix(b, []byte("\r\n\r\n"+r.answer)):
		return wrongAnswer
	}
	return fine
}

// end records a client's result and closes its connection.
func (r *runner) end(c *client, why reason) {
	r.rec.add(c.due, time.Since(r.began), why)
	unix.Close(c.fd)
	r.clients[c.slot] = nil
	r.free = append(r.free, c.slot)
	r.open--
	c.gone = true
}

// expire ends the clients that have waited too long, the oldest first.
func (r *runner) expire() {
	now := time.Since(r.began)
	for c := r.first; c != nil; c = r.first {
		if !c.gone {
			if now-c.due < r.limit {
				return
			}
			r.end(c, tooLate)
		}
		if r.first = c.next; r.first == nil {
			r.last = nil
		}
	}
}

// closeAll closes the connections of an interrupted load.
func (r *runner) closeAll() {
	for _, c := range r.clients {
		if c != nil {
			unix.Close(c.fd)
		}
	}
}
