package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"golang.org/x/sys/unix"
)

// echoURL is one way to the echo server.
type echoURL struct {
	address, path string
	tls           bool
}

// echoRun is the result of one measurement.
type echoRun struct {
	took    time.Duration
	latency []time.Duration // of each echoed message
	broken  int             // messages whose echo differs or is missing
}

// warmup is the share of the measurement that precedes it and is not counted.
const warmup = 5

// echoTimeout bounds the wait for any message at all.
const echoTimeout = 10 * time.Second

// loadConn is a client with one message in flight.
type loadConn struct {
	fd    int
	frame []byte // the message to send
	want  []byte // the expected echo
	got   []byte
	have  int
	sent  time.Time
	n     uint64
}

// echoLoad keeps conns clients busy for d.
func echoLoad(ctx context.Context, to echoURL, conns, size int, d time.Duration) (run echoRun, err error) {
	p, err := newPoller()
	if err != nil {
		return run, err
	}
	defer p.close()
	clients := make([]*loadConn, 0, conns)
	defer func() {
		for _, c := range clients {
			unix.Close(c.fd)
		}
	}()
	for i := range conns {
		fd, err := echoDial(ctx, to)
		if err != nil {
			return run, fmt.Errorf("client %d of %d: %w", i+1, conns, err)
		}
		c := newLoadConn(fd, size)
		clients = append(clients, c)
		if err := p.add(fd, int32(i)); err != nil {
			return run, err
		}
	}
	for _, c := range clients {
		if err := c.send(); err != nil {
			return run, err
		}
	}
	run.latency = make([]time.Duration, 0, 1<<18)
	start := time.Now().Add(d / warmup)
	end := start.Add(d)
	broken := map[int32]bool{}
	for now := time.Now(); now.Before(end); now = time.Now() {
		if err := ctx.Err(); err != nil {
			return run, err
		}
		ready, err := p.wait(int(echoTimeout / time.Millisecond))
		if err != nil {
			return run, err
		}
		if len(ready) == 0 {
			return run, fmt.Errorf("no message came back for %v", echoTimeout)
		}
		for _, ev := range ready {
			c := clients[ev.Fd]
			took, err := c.receive()
			switch {
			case err != nil:
				if !broken[ev.Fd] { // a broken client stays broken
					broken[ev.Fd] = true
					run.broken++
					unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, c.fd, nil)
				}
				if len(broken) == len(clients) {
					return run, fmt.Errorf("all clients are broken, the last one by: %w", err)
				}
			case took > 0 && now.After(start):
				run.latency = append(run.latency, took)
			}
		}
	}
	run.took = time.Since(start)
	if len(run.latency) == 0 {
		return run, errors.New("no message came back")
	}
	return run, nil
}

func newLoadConn(fd, size int) *loadConn {
	payload := make([]byte, size)
	for i := range payload {
		payload[i] = byte(i * 7)
	}
	c := &loadConn{fd: fd}
	c.frame = append(frameHeader(nil, size, true), payload...)
	c.want = append(frameHeader(nil, size, false), payload...)
	c.got = make([]byte, len(c.want)+1)
	return c
}

// number makes each message unique, if it is long enough.
func (c *loadConn) number() {
	c.n++
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], c.n)
	size := len(c.want) - len(frameHeader(nil, len(c.want)-4, false))
	if size >= len(b) {
		copy(c.frame[len(c.frame)-len(b):], b[:])
		copy(c.want[len(c.want)-len(b):], b[:])
	}
}

func (c *loadConn) send() error {
	c.number()
	c.have = 0
	c.sent = time.Now()
	return sysWrite(c.fd, c.frame)
}

// receive reads once. When the echo is complete, receive returns its latency and sends
// the next message.
func (c *loadConn) receive() (time.Duration, error) {
	n, err := sysRead(c.fd, c.got[c.have:])
	if err == unix.EAGAIN || err == unix.EINTR {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, errors.New("the connection ended")
	}
	if c.have += n; c.have < len(c.want) {
		return 0, nil
	}
	took := time.Since(c.sent)
	if !bytes.Equal(c.got[:c.have], c.want) {
		return 0, errors.New("the echo is not what was sent")
	}
	return took, c.send()
}

// echoDial opens a WebSocket and returns its descriptor.
func echoDial(ctx context.Context, to echoURL) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, echoTimeout)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", to.address)
	if err != nil {
		return -1, err
	}
	if err := upgradeToWebSocket(c, to); err != nil {
		c.Close()
		return -1, err
	}
	return takeFD(c)
}

// upgradeToWebSocket makes a connection a WebSocket.
func upgradeToWebSocket(c net.Conn, to echoURL) error {
	if err := c.SetDeadline(time.Now().Add(echoTimeout)); err != nil {
		return err
	}
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", to.path, to.address)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err == nil && resp.StatusCode != http.StatusSwitchingProtocols {
		err = fmt.Errorf("status %s", resp.Status)
	}
	return err
}
