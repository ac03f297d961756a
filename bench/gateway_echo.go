package bench

import (
	"bufio"
	"context"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net"
	"net/http"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxPayload keeps the frames of the bench to headers with a 16-bit length.
const maxPayload = 60000

// frameHeader appends the header of an unfragmented binary frame (RFC 6455,
// 5.2). A client's frame is masked with the key 0, which leaves the payload unchanged
// and costs neither side any work.
func frameHeader(b []byte, payload int, client bool) []byte {
	mask := byte(0)
	if client {
		mask = 0x80
	}
	b = append(b, 0x82)
	if payload < 126 {
		b = append(b, mask|byte(payload))
	} else {
		b = binary.BigEndian.AppendUint16(append(b, mask|126), uint16(payload))
	}
	if client {
		b = append(b, 0, 0, 0, 0)
	}
	return b
}

// poller is the epoll set of a bench process. It keeps the overhead between a message
// and its echo small.
type poller struct {
	epoll  int
	events [256]unix.EpollEvent
}

func newPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create1: %w", err)
	}
	return &poller{epoll: fd}, nil
}

func (p *poller) close() { unix.Close(p.epoll) }

func (p *poller) add(fd int, id int32) error {
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: id}
	return unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, fd, &ev)
}

// wait waits up to ms milliseconds and returns the ids that can be read.
func (p *poller) wait(ms int) ([]unix.EpollEvent, error) {
	for {
		n, err := unix.EpollWait(p.epoll, p.events[:], ms)
		if err == nil {
			return p.events[:n], nil
		}
		if err != unix.EINTR {
			return nil, fmt.Errorf("epoll_wait: %w", err)
		}
	}
}

func sysRead(fd int, b []byte) (int, error) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// sysWrite writes all of b and waits while the socket's buffer is full.
func sysWrite(fd int, b []byte) error {
	for len(b) > 0 {
		n, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		switch errno {
		case 0:
			b = b[n:]
		case unix.EINTR:
		case unix.EAGAIN:
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 1000); err != nil && err != unix.EINTR {
				return err
			}
		default:
			return errno
		}
	}
	return nil
}

// takeFD duplicates a connection's descriptor, which Go's runtime then does not poll.
func takeFD(c net.Conn) (int, error) {
	defer c.Close()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return -1, err
	}
	var fd int
	var dup error
	if err := raw.Control(func(orig uintptr) { fd, dup = unix.FcntlInt(orig, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return -1, err
	}
	return fd, dup
}

// echoConn is a connection of the echo server.
type echoConn struct {
	fd   int
	buf  []byte
	have int
}

// serveEcho answers WebSocket clients with their own frames until ctx is done.
func serveEcho(ctx context.Context, ln net.Listener) error {
	p, err := newPoller()
	if err != nil {
		return err
	}
	defer p.close()
	accepted := make(chan *echoConn, 64)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				if fd, err := echoHandshake(c); err == nil {
					accepted <- &echoConn{fd: fd, buf: make([]byte, maxPayload+14)}
				}
			}()
		}
	}()
	defer ln.Close()

	conns := map[int32]*echoConn{}
	for id := int32(0); ctx.Err() == nil; {
		select {
		case c := <-accepted:
			conns[id] = c
			if err := p.add(c.fd, id); err != nil {
				return err
			}
			id++
			continue
		default:
		}
		ready, err := p.wait(10)
		if err != nil {
			return err
		}
		for _, ev := range ready {
			if c := conns[ev.Fd]; c.echo() != nil {
				unix.Close(c.fd)
				delete(conns, ev.Fd)
			}
		}
	}
	for _, c := range conns {
		unix.Close(c.fd)
	}
	return nil
}

func echoHandshake(c net.Conn) (int, error) {
	req, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		c.Close()
		return -1, err
	}
	sum := sha1.Sum([]byte(req.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) // RFC 6455, 1.3
	_, err = fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n",
		base64.StdEncoding.EncodeToString(sum[:]))
	if err != nil {
		c.Close()
		return -1, err
	}
	return takeFD(c)
}

// echo reads once and answers the frame when it is complete.
func (c *echoConn) echo() error {
	n, err := sysRead(c.fd, c.buf[c.have:])
	if err == unix.EAGAIN || err == unix.EINTR {
		return nil
	}
	if err != nil || n == 0 {
		return net.ErrClosed
	}
	c.have += n
	if c.have < 8 {
		return nil
	}
	payload, head := int(c.buf[1]&0x7f), 6
	if payload == 126 {
		payload, head = int(binary.BigEndian.Uint16(c.buf[2:])), 8
	}
	if c.have < head+payload {
		return nil
	}
	// The answer's header is the frame's header without the masking key.
	start := 4
	copy(c.buf[start:], c.buf[:head-4])
	c.buf[start+1] &= 0x7f
	c.have = 0
	return sysWrite(c.fd, c.buf[start:head+payload])
}
