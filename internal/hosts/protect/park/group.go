package park

import (
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
	old      []int // duplicates of the old listeners' descriptors
	selector *bpf.Selector
	parking  int // descriptor of the parking socket; -1: closed
	// hadReuseport says that all old listeners had SO_REUSEPORT before the hold.
	hadReuseport bool
	mptcp        bool // one of them is a Multipath TCP listener
}

// park opens the parking socket and steers new connections to it. Connections
// that the server has accepted or has in its queue stay with the server. The
// connections in its queue move too when it closes.
func (l *group) park(hide func(inode uint32)) error {
	for _, fd := range l.old { // no change if the server has set the option
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
			return fmt.Errorf("give the old listener SO_REUSEPORT: %w", err)
		}
	}
	var err error
	if l.parking, err = l.listen(hide); err != nil {
		return err
	}
	if err := l.selector.Choose(l.parking); err != nil {
		return err
	}
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
	copyOptions(fd, l.old[0])
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

// closeOld closes the duplicates of the old listeners' descriptors.
func (l *group) closeOld() {
	for _, fd := range l.old {
		unix.Close(fd)
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
	return cgroup.MountedV2(proc.Host, "the server does not use SO_REUSEPORT, and a mounted cgroup2 is necessary to set it")
}
