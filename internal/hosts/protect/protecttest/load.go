package protecttest

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Load is a stream of clients in an open loop: one after each interval, independent of
// the clients before. Each connects, sends one request, and closes the connection.
type Load struct {
	stop context.CancelFunc
	all  sync.WaitGroup

	mu      sync.Mutex
	total   int
	failed  []error
	longest time.Duration
	lost    []lost
}

// lost is a client with at least one unanswered SYN.
type lost struct {
	begin time.Time
	times int // it sent one again
}

// Failure is a client that was not served.
type Failure struct {
	Begun, Ended time.Time
	Connected    time.Duration // from Begun until it was connected, 0 if it was not
	Again        int           // SYNs that it sent again
	Err          error
}

func (f Failure) Error() string {
	return fmt.Sprintf("from %s, after %v (connected after %v, SYN sent again %d times): %v", f.Begun.Format(time.StampMilli), f.Ended.Sub(f.Begun), f.Connected, f.Again, f.Err)
}
func (f Failure) Unwrap() error { return f.Err }

// StartLoad sends clients to the address until Stop. A nil dial connects from the current
// network namespace.
func StartLoad(t testing.TB, address string, every time.Duration, dial func(network, address string) (net.Conn, error)) *Load {
	ctx, cancel := context.WithCancel(t.Context())
	l := &Load{stop: cancel}
	l.all.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				l.all.Go(func() { l.one(address, dial) })
			}
		}
	})
	t.Cleanup(func() { cancel(); l.all.Wait() })
	return l
}

func (l *Load) one(address string, dial func(network, address string) (net.Conn, error)) {
	begin := time.Now()
	again, connected := 0, time.Duration(0)
	if dial == nil {
		dial = (&net.Dialer{Timeout: Patience}).Dial
	}
	_, err := ask(address, "/", func(network, address string) (net.Conn, error) {
		c, err := dial(network, address)
		if err == nil {
			again, connected = retransmitted(c), time.Since(begin)
		}
		return c, err
	})
	took := time.Since(begin)
	l.mu.Lock()
	defer l.mu.Unlock()
	if again > 0 {
		l.lost = append(l.lost, lost{begin, again})
	}
	l.total++
	l.longest = max(l.longest, took)
	if err != nil {
		l.failed = append(l.failed, Failure{Begun: begin, Ended: begin.Add(took), Connected: connected, Again: again, Err: err})
	}
}

// retransmitted returns how often a new connection sent its SYN again, as counted by the
// kernel.
func retransmitted(c net.Conn) (n int) {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return 0
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			n = int(info.Total_retrans)
		}
	})
	return n
}

// LostAfter counts the clients with an unanswered SYN after the moment. It uses the
// kernel's counter of retransmissions, so it does not mistake a slow machine for a lost
// packet. At least a second passes between two SYNs (RFC 6298). Therefore, if a client
// sent its SYN again n times, the last but one was sent n-1 s after the first, or later.
// Call it after Stop.
func (l *Load) LostAfter(moment time.Time) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.lost {
		if c.begin.Add(time.Duration(c.times-1) * time.Second).After(moment) {
			n++
		}
	}
	return n
}

// Stop waits for the last clients. It returns their number, their errors, each a Failure, and the
// longest duration.
func (l *Load) Stop() (total int, failed []error, longest time.Duration) {
	l.stop()
	l.all.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total, l.failed, l.longest
}

// Total returns the number of clients that have ended.
func (l *Load) Total() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}

// Ask connects, requests the path, and returns the body of the answer.
func Ask(address, path string) (string, error) { return ask(address, path, nil) }

func ask(address, path string, dial func(network, address string) (net.Conn, error)) (string, error) {
	if dial == nil {
		dial = (&net.Dialer{Timeout: Patience}).Dial
	}
	c, err := dial("tcp", address)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(Patience)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.0\r\n\r\n", path); err != nil {
		return "", err
	}
	r := bufio.NewReader(c)
	status, err := r.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("read the status: %w", err)
	}
	if !strings.Contains(status, " 200 ") {
		return "", fmt.Errorf("the status is %q", status)
	}
	body, inBody := "", false
	for {
		line, err := r.ReadString('\n')
		if inBody {
			body += line
		}
		if strings.TrimSpace(line) == "" {
			inBody = true
		}
		if err != nil {
			return body, nil // the end, by which HTTP/1.0 says so
		}
	}
}

// Crowd is a number of clients that connect at once and wait. The zero value is ready.
type Crowd struct {
	clients sync.WaitGroup
	mu      sync.Mutex
	done    int
	errs    []error
}

// Come sends n clients to the address.
func (c *Crowd) Come(address string, n int) {
	for range n {
		c.clients.Go(func() {
			_, err := Ask(address, "/")
			c.mu.Lock()
			defer c.mu.Unlock()
			c.done++
			if err != nil {
				c.errs = append(c.errs, err)
			}
		})
	}
}

// Finished returns the number of clients that have ended.
func (c *Crowd) Finished() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.done
}

// Failures waits until all clients have ended, and returns their errors.
func (c *Crowd) Failures() []error {
	c.clients.Wait()
	return c.errs
}

// Wait waits until all clients have ended, and fails for each that was not served.
func (c *Crowd) Wait(t testing.TB) {
	t.Helper()
	for i, err := range c.Failures() {
		if i == 5 {
			t.Errorf("and %d more", len(c.errs)-i)
			break
		}
		t.Error("a client:", err)
	}
}
