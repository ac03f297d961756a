package session

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/neigh"
	"holdfast/internal/platform/readiness"
	"holdfast/internal/platform/tasks"
)

// Polling of a container that is not ready. The interval starts at one millisecond and
// becomes a tenth of the time waited, so that polling adds at most a tenth to a boot
// and a slow container is not polled thousands of times.
const (
	firstPoll   = time.Millisecond
	longestPoll = 250 * time.Millisecond
	probeLimit  = 2 * time.Second // for one answer, see probeOnce
)

// errDied is returned when the container's init is dead.
var errDied = errors.New("the container ended")

// address returns where this host reaches a container's server.
func address(c engine.Container, t Template) (string, error) {
	host := "127.0.0.1"
	if t.Network != "host" {
		if len(c.Addresses) == 0 {
			return "", holdfast.WithHint(errors.New("the container has no address"), "check the template's network")
		}
		host = c.Addresses[0]
	}
	return net.JoinHostPort(host, strconv.Itoa(t.Port)), nil
}

// awaitReady returns when the server at addr answers as r requires. The error contains
// the result of the last probe.
func awaitReady(ctx context.Context, addr string, r Readiness, alive func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	start := time.Now()
	var last error
	for {
		if !errors.Is(last, syscall.ECONNREFUSED) { // after a refusal the neighbour is known
			retryNeighbour(addr)
		}
		err := probeOnce(ctx, addr, time.Since(start), r)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err // keep the error of the last complete probe
		}
		if !alive() {
			return errDied
		}
		pause := min(max(firstPoll, time.Since(start)/10), longestPoll)
		if tasks.Sleep(ctx, pause) != nil {
			return holdfast.WithHint(fmt.Errorf("not ready after %v: %w", time.Since(start).Round(time.Millisecond), last),
				"check the template's port and readiness, or give ready.timeout more time")
		}
	}
}

// firstDial bounds the first connect. A packet to a container whose network is just
// starting may be lost, and the kernel would send it again only after a second.
const firstDial = 50 * time.Millisecond

// retryNeighbour makes the kernel repeat neighbour discovery for an address that it is
// still looking for. The kernel may be probing once a second for an earlier container
// with that address, because of connections that container left open. Without
// permission to do so, the kernel finds the address in its own time.
func retryNeighbour(addr string) {
	if host, err := netip.ParseAddrPort(addr); err == nil && !host.Addr().IsLoopback() {
		_ = neigh.AskAgain(host.Addr().AsSlice())
	}
}

// probeOnce checks the server at addr. waited is the time since the first probe. The
// server has half of that time for its answer, probeLimit at least: on a busy host every
// answer may take longer than probeLimit, and the next probe would be the first again.
func probeOnce(ctx context.Context, addr string, waited time.Duration, r Readiness) error {
	ctx, cancel := context.WithTimeout(ctx, max(probeLimit, waited/2))
	defer cancel()
	d := net.Dialer{Timeout: min(max(firstDial, waited/2), probeLimit)}
	return readiness.Probe(ctx, d, addr, r.HTTPPath)
}
