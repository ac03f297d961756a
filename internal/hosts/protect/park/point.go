package park

import (
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/sockdiag"
)

const (
	// pointTime limits the search for the new listeners, because parked
	// connections wait meanwhile.
	pointTime = 50 * time.Millisecond
	// inFlight is longer than a handshake with a client on this host.
	inFlight = time.Millisecond
)

// point steers new connections to the new listener at each group's place, while the
// parking socket is still open. It returns the groups for which that succeeded. The
// parked connections follow when the socket closes.
//
// The kernel resets a client if its handshake ends on one CPU while another CPU closes
// the listener of that handshake (inet_csk_reqsk_queue_add, net/ipv4/
// inet_connection_sock.c). So no handshake should be in progress at the parking socket
// at that time. If several listeners are there now, the kernel distributes the parked
// connections over them. Then a reset remains possible, about once in a million
// connections.
func (h *held) point() map[*group]bool {
	pointed := make(map[*group]bool)
	at, open := h.listening()
	for _, l := range h.groups {
		ls := at[l.place]
		if len(ls) != 1 || ls[0].MPTCP || l.mptcp {
			continue
		}
		fd, err := pidfd.TakeSocket(open[ls[0].Inode], ls[0].Inode)
		if err != nil {
			continue // no process here has it open, or it has just been closed
		}
		pointed[l] = l.selector.Choose(fd) == nil
		unix.Close(fd)
	}
	if len(pointed) > 0 {
		time.Sleep(inFlight)
	}
	return pointed
}

// listening returns the listeners at the groups' places and the processes that
// have them open; nil if the search takes longer than pointTime.
func (h *held) listening() (map[place][]sockdiag.Listener, map[uint32]pidfd.OpenFile) {
	ls, err := h.target.Listeners()
	if err != nil || len(ls) == 0 {
		return nil, nil
	}
	at := make(map[place][]sockdiag.Listener)
	for _, l := range ls {
		at[placeOf(l)] = append(at[placeOf(l)], l)
	}
	found := make(chan map[uint32]pidfd.OpenFile, 1)
	h.watching.Go(func() {
		open, _ := h.target.Owners(ls) // nil: as if no process had them
		found <- open
	})
	late := time.NewTimer(pointTime)
	defer late.Stop()
	select {
	case open := <-found:
		return at, open
	case <-late.C:
		return nil, nil
	}
}
