package park

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/bpf"
	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/sockdiag"
)

// Spare is a parking socket that stays beside a server's listener all the time. While the
// server listens, a program steers all connections to the server. When the listener is
// gone, for whatever reason, the kernel gives new connections, and those that the server
// has not accepted, to the spare: no process has to notice it first. Its methods are not
// for concurrent use.
type Spare struct{ group *group }

// freed is the longest wait for the kernel to free a selector. It takes milliseconds.
const freed = 10 * time.Second

// Place identifies where a listener listens: its address, device and user.
type Place struct{ place }

// PlaceOf returns the place of a listener.
func PlaceOf(l sockdiag.Listener) Place { return Place{placeOf(l)} }

// Port returns the port of the place.
func (p Place) Port() uint16 { return p.addr.Port() }

// Address returns the address of the place.
func (p Place) Address() netip.AddrPort { return p.addr }

// ErrMultipath means that a listener is one of Multipath TCP, to which a program cannot
// steer.
var ErrMultipath = errors.New("a Multipath TCP listener cannot have a spare")

// NewSpare opens a spare beside a listener of process f. Error: ErrMultipath.
func NewSpare(l sockdiag.Listener, f pidfd.OpenFile) (_ *Spare, err error) {
	if l.MPTCP {
		return nil, ErrMultipath
	}
	fd, err := pidfd.TakeSocket(f, l.Inode)
	if err != nil {
		return nil, err
	}
	s := &Spare{&group{place: placeOf(l), old: []int{fd}, parking: -1}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.undo())
		}
	}()
	v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT)
	if err != nil {
		return nil, fmt.Errorf("ask the listener on %v for SO_REUSEPORT: %w", l.Addr, err)
	}
	s.group.hadReuseport = v != 0
	if s.group.selector, err = bpf.NewSelector(); err != nil {
		return nil, err
	}
	if err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return nil, fmt.Errorf("give the listener SO_REUSEPORT: %w", err)
	}
	if s.group.parking, err = s.group.listen(func(uint32) {}); err != nil {
		return nil, err
	}
	if err = s.group.selector.Choose(fd); err != nil {
		return nil, err
	}
	if err = s.group.selector.Attach(s.group.parking); err != nil {
		return nil, err
	}
	s.group.closeOld()
	return s, nil
}

// AdoptSpare takes over the socket of another process's spare, which holds. hadReuseport
// is what its HadReuseport was. The Spare owns fd. AdoptSpare waits until the kernel has
// freed the selector of the other process, 10 s at most.
func AdoptSpare(fd int, l sockdiag.Listener, hadReuseport bool) (*Spare, error) {
	s := &Spare{&group{place: placeOf(l), parking: fd, hadReuseport: hadReuseport}}
	var err error
	if s.group.selector, err = bpf.NewSelector(); err != nil {
		return nil, err
	}
	// Attach replaces the program of the other process, which may have chosen the socket.
	if err = s.group.selector.Attach(fd); err == nil {
		err = s.choose(fd)
	}
	if err != nil {
		s.group.selector.Close()
		return nil, err
	}
	return s, nil
}

// choose chooses a socket that the selector of another process may have chosen. Until the
// kernel has freed that selector, some time after its last use, it answers EBUSY
// (reuseport_array_update_check).
func (s *Spare) choose(fd int) error {
	for begun := time.Now(); ; time.Sleep(time.Millisecond) {
		err := s.group.selector.Choose(fd)
		if !errors.Is(err, unix.EBUSY) || time.Since(begun) > freed {
			return err
		}
	}
}

// undo ends a spare that began only in part.
func (s *Spare) undo() error {
	var err error
	if !s.group.hadReuseport && len(s.group.old) > 0 {
		err = unix.SetsockoptInt(s.group.old[0], unix.SOL_SOCKET, unix.SO_REUSEPORT, 0)
	}
	s.group.close()
	return err
}

// FD returns the descriptor of the parking socket. It changes with each Serve.
func (s *Spare) FD() int { return s.group.parking }

// HadReuseport reports whether the server itself sets SO_REUSEPORT.
func (s *Spare) HadReuseport() bool { return s.group.hadReuseport }

// Waiting returns the number of connections that wait in the spare.
func (s *Spare) Waiting() int { return s.group.queued() }

// Hold steers new connections to the spare, also when a server listens again.
func (s *Spare) Hold() error { return s.group.selector.Choose(s.group.parking) }

// Serve steers all connections to a new listener of process f, and moves those that wait
// to it. Another socket takes the place of the parking socket before; replaced is called
// with its descriptor before the present one ends, which it may not be if other processes
// have it open.
func (s *Spare) Serve(l sockdiag.Listener, f pidfd.OpenFile, replaced func(fd int)) error {
	fd, err := pidfd.TakeSocket(f, l.Inode)
	if err != nil {
		return err
	}
	s.group.old = []int{fd}
	defer s.group.closeOld()
	next, err := s.group.listen(func(uint32) {})
	if err != nil {
		return err
	}
	if err := s.group.selector.Choose(fd); err != nil && !errors.Is(err, unix.EBUSY) {
		unix.Close(next)
		return err
	}
	time.Sleep(inFlight) // see point
	replaced(next)
	// The end of listening moves the connections, also if the service manager has the
	// socket open (tcp_disconnect of the kernel).
	err = unix.Shutdown(s.group.parking, unix.SHUT_RD)
	unix.Close(s.group.parking)
	s.group.parking = next
	return err
}

// End ends the spare. Connections that wait are given to the listener l, or are reset
// without one (a nil l). It removes what the spare has given to the listener.
func (s *Spare) End(l *sockdiag.Listener, f pidfd.OpenFile) error {
	defer s.group.close()
	fd := -1
	var err error
	if l != nil {
		if fd, err = pidfd.TakeSocket(f, l.Inode); err == nil {
			defer unix.Close(fd)
			// EBUSY: it is chosen already (reuseport_array_update_check of the kernel).
			if err = s.group.selector.Choose(fd); errors.Is(err, unix.EBUSY) {
				err = nil
			}
			time.Sleep(inFlight)
		}
	}
	_ = unix.Shutdown(s.group.parking, unix.SHUT_RD) // it listens
	s.group.unpark()
	if fd < 0 {
		return err
	}
	err = errors.Join(err, bpf.Detach(fd))
	if !s.group.hadReuseport {
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 0))
	}
	return err
}

// HookBind lets a server without SO_REUSEPORT bind the ports beside their spares, in the
// network namespace of this process, until the hook is closed. Any process may bind them
// meanwhile.
func HookBind(ports []uint16, spare *Spare) (*bpf.BindHook, error) {
	dir, err := cgroup2()
	if err != nil {
		return nil, err
	}
	cookie, err := bpf.NetnsCookie(spare.group.parking)
	if err != nil {
		return nil, err
	}
	return bpf.HookBind(dir, cookie, ports)
}
