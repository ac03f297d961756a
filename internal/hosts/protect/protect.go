// Package protect holds new connections to a TCP server, and the datagrams of a UDP
// server, while the server restarts. A connect during that time waits in the kernel and reaches the new
// server once that listens. The server needs no support for this.
//
// A Backend is a method of holding connections. Backends live in packages below
// this one; package protecttest specifies their behaviour once for all. They
// run in a separate process, the keeper (Keep), which is started inside the
// network namespace of the ports. The keeper outlives its starter until the
// held connections are let through.
package protect

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/sockdiag"
)

// Errors that callers check for; they are wrapped.
var (
	// ErrNothingListens means that there is no server to protect.
	ErrNothingListens = errors.New("nothing listens")
	// ErrTaken means that another protect has the port.
	ErrTaken = errors.New("another protect holds it")
	// ErrNoBackend means that no backend works here.
	ErrNoBackend = errors.New("no backend works here")
	// ErrNotAdmitted means that a backend cannot let a connection to a listener through
	// while it holds the others.
	ErrNotAdmitted = errors.New("the new server cannot be asked")
)

// Name names a backend.
type Name string

// The backends, the best first. Auto is the first that works.
const (
	Auto    Name = "auto"
	Park    Name = "park"
	NFQueue Name = "nfqueue"
	Migrate Name = "migrate"
	Plug    Name = "plug"

	// Steer holds datagrams, beside one of the others.
	Steer Name = "steer"
)

// Names returns the names of all backends for connections, Auto first.
func Names() []Name { return []Name{Auto, Park, NFQueue, Migrate, Plug} }

// Address is a TCP port on one address, or with the zero Addr on all addresses
// of both families.
type Address struct {
	Addr netip.Addr `json:"addr,omitzero"`
	Port uint16     `json:"port"`
}

// ParseAddress parses "ADDR:PORT", with an IPv6 address in brackets, or "PORT".
func ParseAddress(s string) (Address, error) {
	if port, err := strconv.ParseUint(s, 10, 16); err == nil && port > 0 {
		return Address{Port: uint16(port)}, nil
	}
	ap, err := netip.ParseAddrPort(s)
	if err != nil || ap.Port() == 0 {
		return Address{}, fmt.Errorf("%q is not an address with a port from 1 to 65535", s)
	}
	if ap.Addr().IsUnspecified() { // means all addresses
		return Address{Port: ap.Port()}, nil
	}
	return Address{Addr: ap.Addr().Unmap(), Port: ap.Port()}, nil
}

func (a Address) String() string {
	if !a.Addr.IsValid() {
		return strconv.Itoa(int(a.Port))
	}
	return netip.AddrPortFrom(a.Addr, a.Port).String()
}

// Served reports whether packets to a reach a listener that is bound to l.
func (a Address) Served(l sockdiag.Listener) bool {
	if l.Addr.Port() != a.Port {
		return false
	}
	bound := l.Addr.Addr().Unmap() // as of a Java server's socket, which is of IPv6
	switch {
	case !a.Addr.IsValid() || bound == a.Addr:
		return true
	case !bound.IsUnspecified():
		return false
	}
	// [::] accepts IPv4 too, unless IPV6_V6ONLY is set (ipv6(7)).
	return bound.Is4() == a.Addr.Is4() || bound.Is6() && !l.V6Only
}

// Target is the set of connections to hold.
type Target struct {
	Addresses []Address
	// Forwarded says that the packets are forwarded to another network namespace, as for
	// a published port of a container. They are held before their address is
	// rewritten, and nothing needs to listen in this namespace.
	Forwarded bool
	// Overlap says that the new server listens before the old one stops.
	Overlap bool
	// Asked says that the new server is asked whether it is ready before the release
	// (Held.Admit).
	Asked bool
	// Flows says whether datagrams are held, and For is the limit of HeldDatagrams.Linger.
	Flows Flows
	For   time.Duration
	// Warn reports an error that does not end the hold of datagrams. It is for Steer only.
	Warn func(error)
	// Owners finds the processes that have listeners open, and returns them by
	// the inodes of the sockets. It searches first the processes known to have the
	// old listeners, then all, which takes milliseconds. It may be called from any
	// goroutine.
	Owners func(ls []sockdiag.Listener) (map[uint32]pidfd.OpenFile, error)
	// Listeners returns the listening sockets on Addresses now; for Steer, the UDP sockets.
	// It may be called from any goroutine.
	Listeners func() ([]sockdiag.Listener, error)
	// Hide makes Listeners omit a socket that a backend itself opened on an
	// address. The socket is identified by the inode of its file.
	Hide func(inode uint32)
}

// Serving returns the listeners now. Error: ErrNothingListens, unless the packets are
// forwarded.
func (t Target) Serving() ([]sockdiag.Listener, error) {
	ls, err := t.Listeners()
	if err == nil && len(ls) == 0 && !t.Forwarded {
		err = ErrNothingListens
	}
	return ls, err
}

// Stats are the figures of a hold.
type Stats struct {
	// Held counts the connections that waited so far. A backend that cannot count
	// each of them gives the maximum that it saw at once.
	Held int `json:"held"`
	// Waiting counts the connections that wait now.
	Waiting int `json:"waiting,omitempty"`
	// Longest is the longest wait of one connection; an upper bound if the
	// backend does not see each connection.
	Longest time.Duration `json:"longest_ns"`
	// Waits are the quantiles of the waits of released connections; nil: none was
	// released, or the backend does not measure them.
	Waits *Quantiles `json:"waits,omitempty"`
}

// Backend is a method of holding connections. Its methods are called from any
// goroutine of a process in the network namespace of the target's ports.
type Backend interface {
	Name() Name
	// Probe returns nil if Hold would work for t, else the reason in one readable
	// sentence. It delays no connection and leaves nothing behind.
	Probe(ctx context.Context, t Target) error
	// Hold begins a hold: when it returns, every new connect to t waits. On an
	// error it has undone everything: nothing is left and nothing waits.
	//
	// All kernel state that it creates ends with this process, without cleanup.
	// Connects that wait are then let through when their client sends its SYN
	// again at the latest (1 s, RFC 6298).
	Hold(ctx context.Context, t Target) (Held, error)
	// Tidy undoes the residue of a hold of t whose process was killed.
	Tidy(ctx context.Context, t Target, residue string) error
}

// Held is a hold that has begun. It must be released exactly once.
type Held interface {
	// Stats may be called at any time, from any goroutine.
	Stats() Stats
	// Release lets the waiting connections through: first in, first out, new ones
	// last, one SYN for each connection, and no faster than the server accepts
	// them. When ctx ends it lets the rest through at once. When it returns,
	// nothing is left in the kernel. The error says what could not be tidied up,
	// or that some connections were not let through.
	Release(ctx context.Context) error
	// Admit lets one connection through while all others wait: the new server is asked
	// whether it is ready. from is its source, a bound socket of this process; to is the
	// listener to which it will connect. The caller calls end when it is connected, and
	// before Release. Error: ErrNotAdmitted. It may be called from any goroutine.
	Admit(from netip.AddrPort, to sockdiag.Listener) (end func(), err error)
	// Residue describes, in a format of the backend for Tidy, the kernel state that
	// outlives this process if it is killed; "": none. The residue delays no
	// connection, but the original state is not restored.
	Residue() string
}

// Warmer is a Backend whose first Hold in a process takes longer than later
// ones, because it probes the kernel and reads pages of the program from disk.
type Warmer interface {
	// Warm does the part of Hold that has no visible effect. It ignores errors,
	// which Hold reports.
	Warm()
}

// Preparer is a Backend with kernel state that can exist before a hold and stay after it, so that
// a hold changes less. It costs something between holds, so a standing keeper prepares it only for
// ports that are installed with this backend by name.
type Preparer interface {
	// Prepare makes this state, or removes it: after a hold in progress. It changes nothing if
	// all is as wanted. The state is removed if the process dies.
	Prepare(wanted bool) error
}

// Sweeper is a Backend that keeps connections waiting if all processes of a
// hold are killed at once, for example with their cgroup. The next protect may
// be of another port and then finds no note of the hold, so every protect calls
// Sweep before it holds.
type Sweeper interface {
	// Sweep releases what no process manages any more, and leaves holds in
	// progress alone.
	Sweep() error
}
