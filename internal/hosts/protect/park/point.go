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
	// inFlight is how long a handshake takes that a client of this host has
	// begun, and more.
	inFlight = time.Millisecond
)

// point steers new connections to the one listener that each group's place has by now,
// while the parking socket is still open, and returns the groups where that was done.
// What is parked follows when the socket closes.
//
// The kernel resets a client whose handshake ends on one CPU while another closes
// the listener that it ends at (inet_csk_reqsk_queue_add, net/ipv4/
// inet_connection_sock.c). So no handshake should be on its way to the parking
// socket at that time.
// Where several listen now, the kernel spreads what is parked over them, and that
// moment, once in a million connections or so, remains.
func (h *held) point() map[*group]bool {
	pointed := make(map[*group]bool)
	at, open := h.listening()
	for _, l := range h.groups {
		ls := at[l.place]
		if len(ls) != 1 || ls[0].MPTCP || l.mptcp {
			continue
		}
		f, ok := open[ls[0].Inode]
		if !ok {
			continue
		}
		fd, err := pidfd.TakeSocket(f, ls[0].Inode)
		if err != nil {
			continue // it has just been closed
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
	var inodes []uint32
	for _, l := range ls {
		at[placeOf(l)] = append(at[placeOf(l)], l)
		inodes = append(inodes, l.Inode)
	}
	found := make(chan map[uint32]pidfd.OpenFile, 1)
	h.watching.Go(func() {
		open, _ := h.target.Owners(inodes...) // nil: as if no process had them
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
