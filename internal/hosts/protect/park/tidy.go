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

// residue is the state that remains if the process is killed: the server's listeners to
// which the hold has given SO_REUSEPORT, and the kernel's setting of migration.
type residue struct {
	Given []netip.AddrPort `json:"given,omitempty"`
	// Plain says that no old listener asked for SO_REUSEPORT. Then a new listener
	// at another place has it from the hold, too.
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
		w.Was, _ = tcpmigrate.Original() // "" on a kernel without the setting
	}
	b, err := json.Marshal(w)
	if err != nil {
		return "" // cannot happen: all its types can be encoded
	}
	return string(b)
}

// Tidy holds again and releases at once, which removes the program and the option from
// the current listeners.
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
		return nil // the server has ended, and the residue with it
	} else if err != nil {
		return err
	}
	for _, l := range h.(*held).groups {
		l.hadReuseport = l.hadReuseport && !w.Plain && !slices.Contains(w.Given, l.addr)
	}
	return h.Release(ctx)
}

// tidy removes what the hold has given to the current listeners, new ones or an old one
// that stayed: the program and, if the server does not ask for it, SO_REUSEPORT. The
// hook on bind(2) matches ports only, so new listeners on other addresses of a port have
// the option, too.
func (h *held) tidy() error {
	ls, err := listenersOn(h.target)
	if err != nil || len(ls) == 0 {
		return err
	}
	ls = slices.DeleteFunc(ls, func(l sockdiag.Listener) bool { return h.others[l.Cookie] })
	open, err := h.target.Owners(ls)
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

// asksFor reports whether the server itself sets SO_REUSEPORT at a place. At a new
// place, it does if it did at any old one.
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
