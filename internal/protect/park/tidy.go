package park

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"holdfast/internal/linux/bpf"
	"holdfast/internal/linux/pidfd"
	"holdfast/internal/linux/tcpmigrate"
	"holdfast/internal/protect"
)

// leaves is what is not as it was if the process is killed: which of the server's
// listeners have SO_REUSEPORT by us, and the setting of migration.
type leaves struct {
	Given []netip.AddrPort `json:"given,omitempty"`
	Was   string           `json:"migrate_req,omitempty"`
}

// Leaves is leaves as JSON.
func (h *held) Leaves() string {
	var w leaves
	for _, l := range h.lots {
		if !l.hadReuseport {
			w.Given = append(w.Given, l.addr)
		}
	}
	w.Was, _ = tcpmigrate.Read() // a kernel without it has no use for it
	b, err := json.Marshal(w)
	if err != nil {
		return "" // there is nothing in it that could fail
	}
	return string(b)
}

// Tidy parks once more and releases at once, which takes program and option from
// the listeners that there are.
func (b Backend) Tidy(ctx context.Context, t protect.Target, left string) error {
	var w leaves
	if err := json.Unmarshal([]byte(left), &w); err != nil {
		return fmt.Errorf("read what is left: %w", err)
	}
	if w.Was != "" {
		if err := tcpmigrate.Before(w.Was).Off(); err != nil {
			return err
		}
	}
	h, err := b.Hold(ctx, t)
	if errors.Is(err, protect.ErrNothingListens) {
		return nil // it went with its server
	} else if err != nil {
		return err
	}
	for _, l := range h.(*held).lots {
		l.hadReuseport = l.hadReuseport && !slices.Contains(w.Given, l.addr)
	}
	return h.Release(ctx)
}

// tidy takes from the listeners that there are, new ones or an old one that
// stayed, what they have by us: the program, and SO_REUSEPORT where the server
// does not ask for it by itself.
func (h *held) tidy() error {
	ls, err := h.target.Listeners()
	if err != nil || len(ls) == 0 {
		return err
	}
	var inodes []uint32
	for _, l := range ls {
		inodes = append(inodes, l.Inode)
	}
	open, err := pidfd.FindSockets(nil, inodes...)
	if err != nil {
		return err
	}
	for _, l := range ls {
		fd, e := pidfd.TakeSocket(open[l.Inode], l.Inode)
		if e != nil {
			continue // it has just been closed
		}
		if !l.MPTCP {
			err = errors.Join(err, bpf.Detach(fd))
		}
		if !h.asksFor(placeOf(l)) {
			err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 0))
		}
		unix.Close(fd)
	}
	return err
}

// asksFor reports whether the server sets SO_REUSEPORT itself.
func (h *held) asksFor(at place) bool {
	for _, l := range h.lots {
		if l.place == at {
			return l.hadReuseport
		}
	}
	return true
}
