package park

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/protect"
	"holdfast/internal/platform/linux/bpf"
	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/sockdiag"
	"holdfast/internal/platform/linux/tcpmigrate"
)

// residue is what is not as it was if the process is killed: which of the server's
// listeners have SO_REUSEPORT by us, and the setting of migration.
type residue struct {
	Given []netip.AddrPort `json:"given,omitempty"`
	// Plain says that none of them asked for it, so that a new one at another
	// place has it by us too.
	Plain bool   `json:"plain,omitempty"`
	Was   string `json:"migrate_req,omitempty"`
}

// Residue returns the residue as JSON.
func (h *held) Residue() string {
	w := residue{Plain: !h.asks()}
	for _, l := range h.groups {
		if !l.hadReuseport {
			w.Given = append(w.Given, l.addr)
		}
	}
	if h.switches() {
		w.Was, _ = tcpmigrate.Original() // a kernel without it has no use for it
	}
	b, err := json.Marshal(w)
	if err != nil {
		return "" // there is nothing in it that could fail
	}
	return string(b)
}

// Tidy parks once more and releases at once, which takes program and option from
// the listeners that there are.
func (b Backend) Tidy(ctx context.Context, t protect.Target, left string) error {
	var w residue
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
	for _, l := range h.(*held).groups {
		l.hadReuseport = l.hadReuseport && !w.Plain && !slices.Contains(w.Given, l.addr)
	}
	return h.Release(ctx)
}

// tidy takes from the listeners that there are, new ones or an old one that
// stayed, what they have by us: the program, and SO_REUSEPORT where the server
// does not ask for it by itself. The hook on bind(2) knows ports only, so others
// that have come to one of them, on other addresses, have the option too.
func (h *held) tidy() error {
	ls, err := listenersOn(h.target)
	if err != nil || len(ls) == 0 {
		return err
	}
	ls = slices.DeleteFunc(ls, func(l sockdiag.Listener) bool { return h.others[l.Cookie] })
	var inodes []uint32
	for _, l := range ls {
		inodes = append(inodes, l.Inode)
	}
	open, err := h.target.Owners(inodes...)
	if err != nil {
		return err
	}
	for _, l := range ls {
		fd, e := pidfd.TakeSocket(open[l.Inode], l.Inode)
		if e != nil {
			continue // it has just been closed
		}
		if !l.MPTCP && served(h.target, l) {
			err = errors.Join(err, bpf.Detach(fd))
		}
		if !h.asksFor(placeOf(l)) {
			err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 0))
		}
		unix.Close(fd)
	}
	return err
}

// asksFor reports whether the server sets SO_REUSEPORT itself. At a place where
// none was before, it does if it did anywhere.
func (h *held) asksFor(at place) bool {
	for _, l := range h.groups {
		if l.place == at {
			return l.hadReuseport
		}
	}
	return h.asks()
}

// asks reports whether one of the old listeners asked for SO_REUSEPORT.
func (h *held) asks() bool {
	return slices.ContainsFunc(h.groups, func(l *group) bool { return l.hadReuseport })
}

// listenersOn returns all listeners on the target's ports, on every address.
func listenersOn(t protect.Target) ([]sockdiag.Listener, error) {
	d, err := sockdiag.Open()
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var ls []sockdiag.Listener
	for _, port := range protect.Ports(t.Addresses) {
		of, err := d.Listeners(port)
		if err != nil {
			return nil, err
		}
		ls = append(ls, of...)
	}
	return ls, nil
}

// served reports whether a listener is one of the target's.
func served(t protect.Target, l sockdiag.Listener) bool {
	return slices.ContainsFunc(t.Addresses, func(a protect.Address) bool { return a.Served(l) })
}
