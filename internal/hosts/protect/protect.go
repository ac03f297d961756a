// Package protect holds new connections to a TCP server while the server
// restarts: a connect that comes meanwhile waits in the kernel, and reaches the
// new server when that listens. The server needs to know nothing of it.
//
// A Backend is a way to hold. Backends live in packages below this one, and what
// they have to do is said once, by protecttest. They work in a process of its
// own, the keeper (Keep), which is started inside the network namespace that the
// ports are in and outlives whoever started it for as long as it takes to let
// the held connections go.
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

// Errors that callers decide by; they come wrapped.
var (
	// ErrNothingListens means that there is no server to protect.
	ErrNothingListens = errors.New("nothing listens")
	// ErrTaken means that another protect has the port.
	ErrTaken = errors.New("another protect holds it")
	// ErrNoBackend means that no way of holding works here.
	ErrNoBackend = errors.New("no way of holding works here")
)

// Name names a backend.
type Name string

// The backends that there are, best first. Auto is the first that works.
const (
	Auto    Name = "auto"
	Park    Name = "park"
	NFQueue Name = "nfqueue"
	Migrate Name = "migrate"
	Plug    Name = "plug"
)

// Names are all, Auto first.
func Names() []Name { return []Name{Auto, Park, NFQueue, Migrate, Plug} }

// Address is a TCP port: on one address, or with the zero Addr on all of both
// families.
type Address struct {
	Addr netip.Addr `json:"addr,omitzero"`
	Port uint16     `json:"port"`
}

// ParseAddress reads "ADDR:PORT", an IPv6 address in brackets, or "PORT".
func ParseAddress(s string) (Address, error) {
	if port, err := strconv.ParseUint(s, 10, 16); err == nil && port > 0 {
		return Address{Port: uint16(port)}, nil
	}
	ap, err := netip.ParseAddrPort(s)
	if err != nil || ap.Port() == 0 {
		return Address{}, fmt.Errorf("%q is no address with a port from 1 to 65535", s)
	}
	if ap.Addr().IsUnspecified() { // the server's own way to say "all"
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
	bound := l.Addr.Addr()
	switch {
	case !a.Addr.IsValid() || bound == a.Addr:
		return true
	case !bound.IsUnspecified():
		return false
	}
	// [::] takes IPv4 too, unless IPV6_V6ONLY says no (ipv6(7)).
	return bound.Is4() == a.Addr.Is4() || bound.Is6() && !l.V6Only
}

// Target is what is held.
type Target struct {
	Addresses []Address
	// Forwarded says that the packets go on to another network namespace, as
	// to a container's published port: they are held before their address is
	// rewritten, and nothing in this namespace has to listen.
	Forwarded bool
	// Overlap says that the new server listens before the old one stops.
	Overlap bool
	// Owners looks up who has sockets open, by their inodes: among the
	// processes that are known to have the old listeners, then among all, which
	// takes some 10 ms. It may be called from any goroutine.
	Owners func(inodes ...uint32) (map[uint32]pidfd.OpenFile, error)
	// Listeners returns the server's sockets that listen on Addresses now.
	// It may be called from any goroutine.
	Listeners func() ([]sockdiag.Listener, error)
	// Hide makes Listeners leave a socket out: one that a backend itself has
	// opened on an address. It is told by the inode of its file.
	Hide func(inode uint32)
}

// Stats is what a hold did.
type Stats struct {
	// Held is how many connections waited, so far. A backend that cannot
	// count each gives the most that it saw at once.
	Held int `json:"held"`
	// Waiting of them wait now.
	Waiting int `json:"waiting,omitempty"`
	// Longest is the longest that one waited; an upper bound where the
	// backend does not see each.
	Longest time.Duration `json:"longest_ns"`
}

// Backend is a way to hold. Its methods are called in a process that lives in
// the network namespace of the target's ports, from any goroutine.
type Backend interface {
	Name() Name
	// Probe returns nil where Hold would work for t, else why not, in a
	// sentence for people. It leaves nothing behind and holds nothing up.
	Probe(ctx context.Context, t Target) error
	// Hold begins: when it returns, every new connect to t waits. What it
	// fails on has been unwound: nothing is left and nothing waits.
	//
	// Whatever it makes in the kernel ends with this process, without a hand:
	// connects that wait are then let go, at the latest when their client
	// sends its SYN again (1 s, RFC 6298), and none waits for longer.
	Hold(ctx context.Context, t Target) (Held, error)
}

// Held is a hold that has begun. It has to be released, once.
type Held interface {
	// Stats may be called at any time, from any goroutine.
	Stats() Stats
	// Release lets go what waits: first in, first out, newcomers behind, one
	// SYN of each connection, and no faster than the server takes them. When
	// ctx ends it lets the rest go at once. When it returns, nothing is left
	// in the kernel; the error says what could not be tidied up, or that
	// some were not let through.
	Release(ctx context.Context) error
}

// Leaver is a Held of which something may outlive its process if that is killed.
// It holds nobody up, but is not as it was.
type Leaver interface {
	// Leaves says what, for Tidy, in the backend's own words; "" is nothing.
	Leaves() string
}

// Tidier is a Backend whose Held is a Leaver.
type Tidier interface {
	// Tidy undoes what a hold of t left, when its process was killed.
	Tidy(ctx context.Context, t Target, left string) error
}

// Warmer is a Backend whose first Hold in a process takes longer than the next: the
// kernel is asked what it can do, and the program's pages are read.
type Warmer interface {
	// Warm does what Hold does, as far as nobody can notice. What fails here fails
	// there too.
	Warm()
}

// Sweeper is a Backend that holds people up if all of a hold's processes are
// killed at once, as with a cgroup. No note of that may be found by the next
// protect, which may be of another port, so every one sweeps before it holds.
type Sweeper interface {
	// Sweep lets go what nobody looks after, and leaves alone what somebody
	// does.
	Sweep() error
}
