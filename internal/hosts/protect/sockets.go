package protect

import (
	"errors"
	"maps"
	"slices"
	"sync"

	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/sockdiag"
)

// Sockets watches the listeners of some addresses in the network namespace of the thread that
// created it, and their UDP sockets if asked to. Its methods may be called from any goroutine.
type Sockets struct {
	diag      *sockdiag.Diag
	addresses []Address
	owners    *owners
	udp       bool       // of UDP too
	asked     bool       // Target.Asked
	begun     func() int // HeldDatagrams.Handshakes; nil: nothing of UDP is held
	lent      bool       // it is in use after the hold
	stays     bool       // the old server's UDP sockets get datagrams during the hold

	mu     sync.Mutex
	hidden map[uint32]bool // inodes
}

// NewSockets opens a netlink socket for the queries.
func NewSockets(addresses []Address) (*Sockets, error) { return newSockets(addresses, newOwners()) }

// newSockets is NewSockets with a cache of socket owners.
func newSockets(addresses []Address, o *owners) (*Sockets, error) {
	if len(addresses) == 0 {
		return nil, errors.New("no address is given")
	}
	d, err := sockdiag.Open()
	if err != nil {
		return nil, err
	}
	return &Sockets{diag: d, addresses: addresses, owners: o, hidden: make(map[uint32]bool)}, nil
}

// Target returns the Target of a backend for spec.
func (s *Sockets) Target(spec Spec) Target {
	return Target{
		Addresses: s.addresses, Forwarded: spec.Forwarded, Overlap: spec.Overlap,
		Asked: s.asked, Flows: spec.UDP, For: spec.UDPFor, Listeners: s.connectable, Hide: s.hide,
		Owners: func(ls []sockdiag.Listener) (map[uint32]pidfd.OpenFile, error) {
			return s.owners.find(spec.PIDs, inodesOf(ls))
		},
	}
}

// inodesOf returns the inodes of listeners, each once.
func inodesOf(ls []sockdiag.Listener) []uint32 {
	set := make(map[uint32]bool)
	for _, l := range ls {
		set[l.Inode] = true
	}
	return slices.Collect(maps.Keys(set))
}

func (s *Sockets) hide(inode uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hidden[inode] = true
}

func (s *Sockets) ports() []uint16 { return Ports(s.addresses) }

// Listeners returns the listeners of the addresses, without hidden ones. If asked to, it also
// returns the UDP sockets.
func (s *Sockets) Listeners() ([]sockdiag.Listener, error) {
	ls, err := s.connectable()
	if err != nil || !s.udp {
		return ls, err
	}
	us, err := s.receivers()
	return append(ls, us...), err
}

func (s *Sockets) connectable() ([]sockdiag.Listener, error) { return s.those(s.diag.Listeners) }
func (s *Sockets) receivers() ([]sockdiag.Listener, error)   { return s.those(s.diag.Receivers) }

func (s *Sockets) those(of func(port uint16) ([]sockdiag.Listener, error)) ([]sockdiag.Listener, error) {
	var ls []sockdiag.Listener
	for _, port := range s.ports() {
		all, err := of(port)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		for _, l := range all {
			if !s.hidden[l.Inode] && slices.ContainsFunc(s.addresses, func(a Address) bool { return a.Served(l) }) {
				ls = append(ls, l)
			}
		}
		s.mu.Unlock()
	}
	return ls, nil
}

func (s *Sockets) listening() bool {
	ls, err := s.Listeners()
	return err == nil && len(ls) > 0
}

// Close closes the netlink socket.
func (s *Sockets) Close() { _ = s.diag.Close() }
