// Package keep carries a server's idle HTTP/1 connections over a restart, also a hard one.
//
// A separate process, the relay, takes copies of the old server's sockets that are between
// two requests. When the old server is gone and a new one listens, it passes the next
// requests of these clients to the new server. Start, Process and Report are the side of
// the process that asks for it; Main is the relay.
package keep

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/child"
	"holdfast/internal/platform/linux/netns"
)

// Clients says whose connections are kept.
type Clients string

// The values of Clients. Idle are the idle connections of all clients, and Local those of
// clients on this host, of which the new server sees the right address.
const (
	None  Clients = "none"
	Idle  Clients = "idle"
	Local Clients = "local"
)

// Words returns all values of Clients.
func Words() []Clients { return []Clients{None, Idle, Local} }

// Spec says which connections to keep.
type Spec struct {
	Addresses []Address `json:"addresses"` // of the server
	Clients   Clients   `json:"clients"`
	// PIDs are processes that may have the sockets open; they are searched first.
	PIDs []int `json:"pids,omitempty"`
	// For is how long the relay serves the kept connections. Then it closes those that are
	// idle, and others after their next answer. It must be over 0.
	For time.Duration `json:"for_ns"`
}

// Address is a port on one address, or with the zero Addr on all.
type Address struct {
	Addr netip.Addr `json:"addr,omitzero"`
	Port uint16     `json:"port"`
}

// serves reports whether connections to local are connections to a.
func (a Address) serves(local netip.AddrPort) bool {
	return a.Port == local.Port() && (!a.Addr.IsValid() || a.Addr == local.Addr().Unmap())
}

// Refused is a port whose connections cannot be kept.
type Refused struct {
	Port uint16 `json:"port"`
	Why  string `json:"why"`
}

// Report is what became of the old server's connections.
type Report struct {
	// Kept counts the connections that the relay has now.
	Kept int `json:"kept"`
	// Stayed counts those of a server that did not end. It has kept them itself.
	Stayed int `json:"stayed,omitempty"`
	// Lost counts the connections that ended with the old server, by reason.
	Lost map[Reason]int `json:"lost,omitempty"`
	// Refused are the ports without kept connections.
	Refused []Refused `json:"refused,omitempty"`
	// For is how long the relay serves them.
	For time.Duration `json:"for_ns,omitempty"`
}

// Reason is why a connection is not kept.
type Reason string

// The reasons.
const (
	Busy     Reason = "request unanswered"
	Remote   Reason = "client on another host"
	TooMany  Reason = "limit reached"
	NotTaken Reason = "socket not usable"
)

// Process is the starter's handle of a relay. Its methods are for one goroutine at a time.
type Process struct {
	conn    *child.Conn[answer]
	process *os.Process
	relays  bool // it was asked to
}

// Options say how a relay is started.
type Options struct {
	// Argv is a command that calls Main with no arguments.
	Argv []string
	// Netns is the path of the server's network namespace; "" is the current one.
	Netns string
}

// Start starts a relay. Until Relay it ends with its starter, and undoes what it did.
func Start(o Options) (*Process, error) {
	cmd := child.Command(o.Argv, "GOMAXPROCS=2", "GODEBUG=madvdontneed=1")
	conn, err := child.Start(cmd, unix.SOCK_SEQPACKET, func() error { return netns.Do(o.Netns, cmd.Start) })
	if err != nil {
		return nil, fmt.Errorf("start the process that keeps connections: %w", err)
	}
	p := &Process{process: cmd.Process}
	p.conn = child.Talk(conn, maxMessage, child.Handlers[answer]{End: func() { conn.Close() }})
	return p, nil
}

// ErrGone reports that the relay has died. The connections that it kept are closed.
var ErrGone = errors.New("the process that keeps connections is gone")

func (p *Process) ask(ctx context.Context, r request) (answer, error) {
	if err := p.conn.Send(r, nil, sendLimit); err != nil {
		return answer{}, errors.Join(ErrGone, err)
	}
	a, err := p.conn.Await(ctx, func(a answer) bool { return a.Op == r.Op })
	switch {
	case errors.Is(err, child.ErrGone):
		return a, ErrGone
	case err != nil:
		return a, err
	case a.Error != "":
		return a, errors.New(a.Error)
	}
	return a, nil
}

// Watch finds the server's connections, and watches their requests from now on. It returns
// the ports on which connections can be kept, and why not on others. No client notices it.
func (p *Process) Watch(ctx context.Context, s Spec) (ports []uint16, refused []Refused, err error) {
	s.PIDs = s.PIDs[:min(len(s.PIDs), maxPIDs)]
	a, err := p.ask(ctx, request{Op: opWatch, Spec: s})
	if err != nil {
		return nil, nil, fmt.Errorf("find the connections to keep: %w", err)
	}
	return a.Ports, a.Report.Refused, nil
}

// Shut keeps new requests from the old server: their clients send them again later. Requests
// that have begun go on to it.
func (p *Process) Shut(ctx context.Context) error {
	if _, err := p.ask(ctx, request{Op: opShut}); err != nil {
		return fmt.Errorf("keep new requests from the server: %w", err)
	}
	return nil
}

// Settle waits until the old server has answered all requests, or until the limit. It
// returns how many connections still have one.
func (p *Process) Settle(ctx context.Context, limit time.Duration) (busy int, err error) {
	a, err := p.ask(ctx, request{Op: opSettle, Limit: limit})
	if err != nil {
		return 0, fmt.Errorf("wait for requests to be answered: %w", err)
	}
	return a.Busy, nil
}

// Relay ends the hold of requests. It gives the connections of an old server that still
// runs back to it, and passes the requests of all others on from now on. The relay then
// outlives this process.
func (p *Process) Relay(ctx context.Context) (Report, error) {
	p.relays = true
	a, err := p.ask(ctx, request{Op: opRelay})
	if err != nil {
		return a.Report, fmt.Errorf("relay the kept connections: %w", err)
	}
	return a.Report, nil
}

// Close ends a relay that was not asked to relay, and waits for that. It undoes what the
// relay did: the old server gets its requests again, and kept connections close. After
// Relay it leaves the relay alone. A nil Process needs no Close.
func (p *Process) Close() {
	if p == nil {
		return
	}
	_ = p.conn.CloseWrite()
	select {
	case <-p.conn.Ended():
	case <-time.After(closeLimit): // it hangs
		_ = p.process.Kill()
		_ = p.conn.Close()
		<-p.conn.Ended()
	}
	if p.relays {
		_ = p.process.Release() // it ends later
		return
	}
	_, _ = p.process.Wait() // it has closed its socket: it ends, or is dead
}

const (
	maxMessage = 64 << 10
	maxPIDs    = 1000
	sendLimit  = 5 * time.Second
	closeLimit = 5 * time.Second
)

// op names a request and its answer.
type op string

const (
	opWatch  op = "watch"
	opShut   op = "shut"
	opSettle op = "settle"
	opRelay  op = "relay"
)

type request struct {
	Op    op            `json:"op"`
	Spec  Spec          `json:"spec,omitzero"`
	Limit time.Duration `json:"limit_ns,omitempty"`
}

type answer struct {
	Op     op       `json:"op"`
	Error  string   `json:"error,omitempty"`
	Ports  []uint16 `json:"ports,omitempty"`
	Busy   int      `json:"busy,omitempty"`
	Report Report   `json:"report,omitzero"`
}

// dialled returns the address at which a server is reached that listens on l, for a client
// of this host.
func dialled(l netip.AddrPort, v6only bool) netip.AddrPort {
	addr := l.Addr()
	if addr.IsUnspecified() {
		v6 := addr.Is6() && v6only
		if addr = netip.AddrFrom4([4]byte{127, 0, 0, 1}); v6 {
			addr = netip.IPv6Loopback()
		}
	}
	return netip.AddrPortFrom(addr, l.Port())
}

// dial connects to a server on this host.
func dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", to.String())
}
