package park

import (
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/protect"
	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/sockdiag"
)

// Admit steers one connection to a listener. The listener has to be in the group of an old
// one, and plain TCP.
func (h *held) Admit(from netip.AddrPort, to sockdiag.Listener) (end func(), err error) {
	i := slices.IndexFunc(h.groups, func(g *group) bool { return g.place == placeOf(to) })
	if i < 0 || to.MPTCP {
		return nil, fmt.Errorf("%w: it listens in another way than the old one did", protect.ErrNotAdmitted)
	}
	open, err := h.target.Owners([]sockdiag.Listener{to})
	if err != nil {
		return nil, err
	}
	f, ok := open[to.Inode]
	if !ok {
		return nil, fmt.Errorf("no process here has the listener on %v open", to.Addr)
	}
	fd, err := pidfd.TakeSocket(f, to.Inode)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	h.admitting.Lock()
	defer h.admitting.Unlock()
	return h.groups[i].selector.Pass(from, fd)
}
