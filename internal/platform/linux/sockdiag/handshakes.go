package sockdiag

import (
	"maps"
	"net/netip"
)

// Handshakes are the TCP handshakes of some ports that were in progress at the first
// call of Open: the client's next packet completes a connection at the listener that
// answered the first one. It is for one goroutine.
type Handshakes struct {
	diag  *Diag
	ports []uint16
	of    map[netip.AddrPort]bool // peers; nil before the first call of Open
}

// Handshakes watches the ports, which have to be distinct.
func (d *Diag) Handshakes(ports ...uint16) *Handshakes { return &Handshakes{diag: d, ports: ports} }

// Open counts the handshakes of the first call that are still in progress. It walks
// the table of connections once for each port.
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
