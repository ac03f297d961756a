package protect

import (
	"maps"
	"slices"
	"sync"

	"holdfast/internal/linux/sockdiag"
)

// sockets watches the listeners of some addresses. Its methods may be called
// from any goroutine.
type sockets struct {
	diag      *sockdiag.Diag
	addresses []Address

	mu     sync.Mutex
	hidden map[uint32]bool // inodes
}

func newSockets(addresses []Address) (*sockets, error) {
	d, err := sockdiag.Open()
	if err != nil {
		return nil, err
	}
	return &sockets{diag: d, addresses: addresses, hidden: make(map[uint32]bool)}, nil
}

// target is what a backend gets.
func (s *sockets) target(spec Spec) Target {
	return Target{
		Addresses: s.addresses, Forwarded: spec.Forwarded, Overlap: spec.Overlap, PIDs: spec.PIDs,
		Listeners: s.listeners, Hide: s.hide,
	}
}

func (s *sockets) hide(inode uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hidden[inode] = true
}

// ports are those of the addresses, each once.
func (s *sockets) ports() []uint16 {
	set := make(map[uint16]bool)
	for _, a := range s.addresses {
		set[a.Port] = true
	}
	return slices.Sorted(maps.Keys(set))
}

func (s *sockets) listeners() ([]sockdiag.Listener, error) {
	var ls []sockdiag.Listener
	for _, port := range s.ports() {
		all, err := s.diag.Listeners(port)
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

func (s *sockets) close() { _ = s.diag.Close() }
