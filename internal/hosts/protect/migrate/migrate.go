// Package migrate holds nothing. It makes the kernel hand the connections that
// a closing listener has not accepted to the new listener beside it
// (tcp_migrate_req, ip-sysctl). That is sufficient, and costs nothing, if the
// new server listens with SO_REUSEPORT before the old one stops.
package migrate

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/protect"
	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/sockdiag"
	"holdfast/internal/platform/linux/tcpmigrate"
)

// Backend is the backend migrate.
type Backend struct{}

// Name is migrate.
func (Backend) Name() protect.Name { return protect.Migrate }

// Probe checks the kernel setting, and SO_REUSEPORT of every listener.
func (Backend) Probe(_ context.Context, t protect.Target) error {
	switch _, err := tcpmigrate.Read(); {
	case err != nil:
		return err
	case t.Forwarded:
		return errors.New("the listener is in another network namespace")
	case !t.Overlap:
		return errors.New("it holds nothing, and needs a new server that listens before the old one stops (--overlap)")
	}
	return asksForReuseport(t)
}

func asksForReuseport(t protect.Target) error {
	ls, err := t.Serving()
	if err != nil {
		return err
	}
	open, err := t.Owners(ls)
	if err != nil {
		return err
	}
	for _, l := range ls {
		fd, err := pidfd.TakeSocket(open[l.Inode], l.Inode)
		if err != nil {
			return err
		}
		v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT)
		unix.Close(fd)
		if err != nil || v == 0 {
			return fmt.Errorf("the listener on %v does not use SO_REUSEPORT", l.Addr)
		}
	}
	return nil
}

// Hold enables the setting.
func (b Backend) Hold(ctx context.Context, t protect.Target) (protect.Held, error) {
	if err := b.Probe(ctx, t); err != nil {
		return nil, err
	}
	s, err := tcpmigrate.On()
	if err != nil {
		return nil, err
	}
	return held{s}, nil
}

// held is the setting, switched on.
type held struct{ setting tcpmigrate.Switch }

// Residue returns the original value of the setting.
func (h held) Residue() string { return h.setting.Was() }

// Tidy restores the original value.
func (Backend) Tidy(_ context.Context, _ protect.Target, left string) error {
	return tcpmigrate.Before(left).Off()
}

// Admit does nothing, because nothing is held.
func (held) Admit(netip.AddrPort, sockdiag.Listener) (end func(), err error) {
	return func() {}, nil
}

func (held) Stats() protect.Stats { return protect.Stats{} }

func (h held) Release(context.Context) error { return h.setting.Off() }
