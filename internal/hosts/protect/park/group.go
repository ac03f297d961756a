package park

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/bpf"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/platform/linux/sockdiag"
)

// place has the properties that the listeners of one reuseport group of the kernel have
// in common (inet_reuseport_add_sock), including the user.
type place struct {
	addr   netip.AddrPort
	device uint32
	v6only bool
	uid    uint32
}

func placeOf(l sockdiag.Listener) place { return place{l.Addr, l.Device, l.V6Only, l.UID} }

// group is a reuseport group: a place with its old listeners, and the socket that parks
// connections to it.
type group struct {
	place
	old      []*old
	selector *bpf.Selector
	parking  int  // descriptor of the parking socket; -1: closed
	steered  bool // the group has the hold's program
	// hadReuseport says that the old listeners asked for SO_REUSEPORT
	// themselves.
	hadReuseport bool
	mptcp        bool // one of them is a Multipath TCP listener
}

// old is an old listener, with a duplicate of its descriptor.
type old struct {
	fd        int
	reuseport bool // it had SO_REUSEPORT before the hold
}

func newOld(fd int, l sockdiag.Listener) (*old, error) {
	v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT)
	if err != nil {
		err = fmt.Errorf("ask the listener on %v for SO_REUSEPORT: %w", l.Addr, err)
	}
	return &old{fd, v != 0}, err
}

// reuseport reports whether all old listeners had SO_REUSEPORT before the hold.
func (l *group) reuseport() bool {
	l.hadReuseport = true
	for _, o := range l.old {
		l.hadReuseport = l.hadReuseport && o.reuseport
	}
	return l.hadReuseport
}

// park opens the parking socket and steers new connections to it. Connections
// that the server has accepted or has in its queue stay with the server. The
// connections in its queue move too when it closes.
func (l *group) park(hide func(inode uint32)) error {
	for _, o := range l.old {
		if !o.reuseport {
			if err := unix.SetsockoptInt(o.fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
				return fmt.Errorf("give the old listener SO_REUSEPORT: %w", err)
			}
		}
	}
	var err error
	if l.parking, err = l.listen(hide); err != nil {
		return err
	}
	if err := l.selector.Choose(l.parking); err != nil {
		return err
	}
	l.steered = true
	return l.selector.Attach(l.parking)
}

// listen opens a socket like the old one. It is plain TCP, which a server with a
// Multipath TCP listener accepts as well.
func (l *group) listen(hide func(inode uint32)) (int, error) {
	family := unix.AF_INET6
	if l.addr.Addr().Is4() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
	if err != nil {
		return -1, fmt.Errorf("open a parking socket: %w", err)
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil {
		hide(uint32(st.Ino))
		err = l.setUp(fd, family)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("set the parking socket up: %w", err)
	}
	return fd, nil
}

func (l *group) setUp(fd, family int) error {
	// All sockets of a group belong to one user, the owner of the socket file.
	if err := unix.Fchown(fd, int(l.uid), -1); err != nil {
		return fmt.Errorf("fchown: %w", err)
	}
	for _, o := range []int{unix.SO_REUSEADDR, unix.SO_REUSEPORT} {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, o, 1); err != nil {
			return err
		}
	}
	if family == unix.AF_INET6 {
		only := 0
		if l.v6only {
			only = 1
		}
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, only); err != nil {
			return err
		}
	}
	if l.device != 0 {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, int(l.device)); err != nil {
			return err
		}
	}
	copyOptions(fd, l.old[0].fd)
	if err := unix.Bind(fd, l.sockaddr()); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	// As many as the kernel allows (net.core.somaxconn).
	return unix.Listen(fd, 65535)
}

func (l *group) sockaddr() unix.Sockaddr {
	if a := l.addr.Addr(); a.Is4() {
		return &unix.SockaddrInet4{Port: int(l.addr.Port()), Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Port: int(l.addr.Port()), Addr: l.addr.Addr().As16(), ZoneId: l.device}
}

// inherited are the options that a connection inherits from the listener of its
// handshake, tcp(7), ip(7), socket(7). A server that sets them on its listener expects
// them on the connections that it accepts.
var inherited = [...][2]int{
	{unix.SOL_SOCKET, unix.SO_KEEPALIVE},
	{unix.SOL_SOCKET, unix.SO_MARK},
	{unix.SOL_SOCKET, unix.SO_PRIORITY},
	{unix.SOL_SOCKET, unix.SO_OOBINLINE},
	{unix.IPPROTO_TCP, unix.TCP_NODELAY},
	{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE},
	{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL},
	{unix.IPPROTO_TCP, unix.TCP_KEEPCNT},
	{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT},
	{unix.IPPROTO_IP, unix.IP_TOS},
	{unix.IPPROTO_IP, unix.IP_TRANSPARENT},
	{unix.IPPROTO_IP, unix.IP_FREEBIND},
}

// copyOptions copies the options that differ. An option that cannot be read or
// set does not prevent parking; bind fails if it was required.
func copyOptions(to, from int) {
	for _, o := range inherited {
		want, err := unix.GetsockoptInt(from, o[0], o[1])
		if err != nil {
			continue
		}
		if have, err := unix.GetsockoptInt(to, o[0], o[1]); err == nil && have != want {
			_ = unix.SetsockoptInt(to, o[0], o[1], want)
		}
	}
	if l, err := unix.GetsockoptTCPInfo(from, unix.IPPROTO_TCP, unix.TCP_INFO); err == nil && l.State == sockdiag.Listen {
		if cc, err := unix.GetsockoptString(from, unix.IPPROTO_TCP, unix.TCP_CONGESTION); err == nil {
			_ = unix.SetsockoptString(to, unix.IPPROTO_TCP, unix.TCP_CONGESTION, cc)
		}
	}
}

// queued returns the number of parked connections. For a listener, tcpi_unacked is the
// length of its queue (tcp_get_info of the kernel).
func (l *group) queued() int {
	if l.parking < 0 {
		return 0
	}
	info, err := unix.GetsockoptTCPInfo(l.parking, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0
	}
	return int(info.Unacked)
}

// unpark closes the parking socket. Its connections move to the listeners that remain
// in the group.
func (l *group) unpark() {
	if l.parking >= 0 {
		unix.Close(l.parking)
		l.parking = -1
	}
}

// restore restores the old listeners. A program cannot be detached from a
// Multipath TCP listener; unpark has done that.
func (l *group) restore() (err error) {
	for _, o := range l.old {
		if l.steered && !l.mptcp {
			err = errors.Join(err, bpf.Detach(o.fd))
		}
		if !o.reuseport {
			err = errors.Join(err, unix.SetsockoptInt(o.fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 0))
		}
	}
	return err
}

// closeOld closes the duplicates of the old listeners' descriptors.
func (l *group) closeOld() {
	for _, o := range l.old {
		unix.Close(o.fd)
	}
	l.old = nil
}

func (l *group) close() {
	l.unpark()
	l.closeOld()
	if l.selector != nil {
		l.selector.Close()
	}
}

// cgroup2 returns the mount point of cgroup2.
func cgroup2() (string, error) {
	mounts, err := cgroup.Find(proc.Host)
	if err != nil {
		return "", err
	}
	for _, m := range mounts {
		if m.V2 {
			return m.Point, nil
		}
	}
	return "", errors.New("the server does not use SO_REUSEPORT, and without a mounted cgroup2 it cannot be made to")
}
