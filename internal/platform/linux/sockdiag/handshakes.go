package sockdiag

import (
	"maps"
	"net/netip"
)

// Handshakes are those that a server has begun on some ports and that were not over
// at the first look: a client's next packet makes a connection of the listener's
// that answered its first one. It belongs to one goroutine.
type Handshakes struct {
	diag  *Diag
	ports []uint16
	of    map[netip.AddrPort]bool // peers; nil before the first look
}

// Handshakes watches the ports, each of which is given once.
func (d *Diag) Handshakes(ports ...uint16) *Handshakes { return &Handshakes{diag: d, ports: ports} }

// Open counts those of the first look that are not over. It walks the table of
// connections once for each port.
func (h *Handshakes) Open() (int, error) {
	now := make(map[netip.AddrPort]bool)
	for _, port := range h.ports {
		cs, err := h.diag.Conns(port, SynRecv)
		if err != nil {
			return 0, err
		}
		for _, c := range cs {
			now[c.Peer] = true
		}
	}
	if h.of != nil {
		maps.DeleteFunc(now, func(peer netip.AddrPort, _ bool) bool { return !h.of[peer] })
	}
	h.of = now
	return len(now), nil
}
