// Package sockdiag queries TCP and UDP sockets by sock_diag(7) with inet_diag, like ss(8).
package sockdiag

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Listener is a listening socket.
type Listener struct {
	Addr    netip.AddrPort
	Device  uint32 // index of the interface that it is bound to, 0 for none
	V6Only  bool   // of an IPv6 socket: IPV6_V6ONLY
	Cookie  uint64 // identifies the socket until the next boot
	Inode   uint32 // of the file that a process has open
	UID     uint32
	Queue   int  // connections that wait for accept(2); of UDP, bytes of memory of datagrams
	Backlog int  // limit of Queue; of UDP without meaning
	MPTCP   bool // a Multipath TCP socket, which has a TCP one inside
	UDP     bool // a UDP socket that is not connected, and so receives from all addresses
}

// Conn is the server's socket of a connection.
type Conn struct {
	Local, Peer netip.AddrPort
	Inode       uint32 // 0: no process has it open (yet, or any more)
	Unread      int    // bytes received and not read
	Unsent      int    // bytes written that the peer has not acknowledged
	// SinceSent and SinceReceived are the times since data were last sent and
	// received, by the kernel's clock, which ticks every 1 to 10 ms. If there were
	// never any, the time has no meaning.
	SinceSent, SinceReceived time.Duration
	RTT                      time.Duration // smoothed round-trip time
	SegmentsSent             uint32        // with data
	HasReceived              bool          // data
}

// Socket states, include/net/tcp_states.h.
const (
	Established = 1
	SynRecv     = 3
	CloseWait   = 8
	Listen      = 10

	unconnected = 7 // TCP_CLOSE, the state of a UDP socket
)

const (
	// inet_diag.h: types of requests, and of attributes. The older request is about TCP only, and
	// about both families.
	tcpDiagGetSock   = 18
	sockDiagByFamily = 20
	attrInfo         = 2  // INET_DIAG_INFO, struct tcp_info
	attrV6Only       = 11 // INET_DIAG_SKV6ONLY
	attrULP          = 19 // INET_DIAG_ULP_INFO
	attrULPName      = 1  // INET_ULP_INFO_NAME in it
	reqProtocol      = 3  // INET_DIAG_REQ_PROTOCOL, for those over 255

	bothLen    = 60 // struct inet_diag_req
	requestLen = 56 // struct inet_diag_req_v2
	messageLen = 72 // struct inet_diag_msg

	protoMPTCP = 262 // IPPROTO_MPTCP

	// askLimit bounds a dump. One takes milliseconds, and on an emulated host without a free CPU
	// it has taken more than 5 s.
	askLimit = 15 * time.Second
)

// Diag queries one network namespace: that of the thread that opened it. Its methods
// may be called from any goroutine.
type Diag struct {
	mu   sync.Mutex
	ns   *os.File // of the network namespace
	conn *netlink.Conn
}

// Open opens a query socket.
func Open() (*Diag, error) {
	c, err := netlink.Dial(unix.NETLINK_SOCK_DIAG, nil)
	if err != nil {
		return nil, fmt.Errorf("open sock_diag: %w", err)
	}
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open sock_diag: %w", err), c.Close())
	}
	return &Diag{ns: ns, conn: c}, nil
}

// reopen opens another socket in the same network namespace. A socket with a partly
// read answer would return the rest to the next query, or is still busy with it. The
// lock is held.
func (d *Diag) reopen() error {
	c, err := netlink.Dial(unix.NETLINK_SOCK_DIAG, &netlink.Config{NetNS: int(d.ns.Fd())})
	if err != nil {
		return fmt.Errorf("open sock_diag again: %w", err)
	}
	old := d.conn
	d.conn = c
	return old.Close()
}

// Close closes the socket.
func (d *Diag) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return errors.Join(d.conn.Close(), d.ns.Close())
}

// Listeners returns the listening sockets on the port; 0 is any port. IPv4 comes first.
func (d *Diag) Listeners(port uint16) ([]Listener, error) {
	all, err := d.listeners(port)
	if err != nil {
		return nil, fmt.Errorf("list the listeners of port %d: %w", port, err)
	}
	return all, nil
}

// Receivers returns the UDP sockets on the port, 0 is any port, that are not connected.
func (d *Diag) Receivers(port uint16) ([]Listener, error) {
	var all []Listener
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		msgs, err := d.dump(query{family: family, protocol: unix.IPPROTO_UDP, states: 1 << unconnected, port: port})
		if err != nil {
			return nil, fmt.Errorf("list the UDP sockets of port %d: %w", port, err)
		}
		for _, m := range msgs {
			l, err := parseListener(m.Data)
			if err != nil {
				return nil, err
			}
			if l.UDP = true; port == 0 || l.Addr.Port() == port {
				all = append(all, l)
			}
		}
	}
	return all, nil
}

// listeners returns the listening TCP sockets, with the inodes of Multipath TCP sockets.
func (d *Diag) listeners(port uint16) ([]Listener, error) {
	msgs, err := d.dump(query{states: 1 << Listen, ext: 1 << (attrInfo - 1), port: port}) // attrULP comes with it
	if err != nil {
		return nil, err
	}
	var ls []Listener
	multipath := map[uint8]bool{} // families
	for _, m := range msgs {
		l, err := parseListener(m.Data)
		if err != nil {
			return nil, err
		}
		if port == 0 || l.Addr.Port() == port {
			ls = append(ls, l)
			if l.MPTCP {
				multipath[m.Data[0]] = true
			}
		}
	}
	// The kernel's order is that of a hash: IPv4 comes first.
	slices.SortStableFunc(ls, func(a, b Listener) int { return cmp.Compare(a.Addr.Addr().BitLen(), b.Addr.Addr().BitLen()) })
	for family := range multipath {
		if err := d.mergeMultipath(family, port, ls); err != nil {
			return nil, err
		}
	}
	return ls, nil
}

// mergeMultipath merges the two views of Multipath TCP listeners: the inner TCP socket has the
// queue and the cookie by which the kernel steers, the outer one has the inode of the file. It
// takes milliseconds on any host, because the kernel walks through a table of all Multipath TCP
// sockets (net/mptcp/mptcp_diag.c).
func (d *Diag) mergeMultipath(family uint8, port uint16, ls []Listener) error {
	outer, err := d.dump(query{family: family, protocol: protoMPTCP, states: 1 << Listen, port: port})
	// A kernel without Multipath TCP, or one whose module is not there.
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		return nil
	} else if err != nil {
		return err
	}
	found := make(map[int]bool)
	for _, m := range outer {
		o, err := parseListener(m.Data)
		if err != nil {
			return err
		}
		for i := range ls {
			if ls[i].Addr == o.Addr && ls[i].Device == o.Device && ls[i].MPTCP && !found[i] {
				ls[i].Inode, found[i] = o.Inode, true
				break
			}
		}
	}
	return nil
}

// Conns returns the connections on a local port in one of the states. It walks the
// whole table of connections, which takes milliseconds on any host.
func (d *Diag) Conns(port uint16, states ...int) ([]Conn, error) {
	all, err := d.conns(query{port: port}, states)
	if err != nil {
		return nil, fmt.Errorf("list the connections of port %d: %w", port, err)
	}
	return all, nil
}

// Peers is Conns for the other end of local connections: those to a port.
func (d *Diag) Peers(port uint16, states ...int) ([]Conn, error) {
	all, err := d.conns(query{peerPort: port}, states)
	if err != nil {
		return nil, fmt.Errorf("list the connections to port %d: %w", port, err)
	}
	return all, nil
}

func (d *Diag) conns(q query, states []int) ([]Conn, error) {
	var mask uint32
	for _, s := range states {
		mask |= 1 << s
	}
	q.states, q.ext = mask, 1<<(attrInfo-1)
	msgs, err := d.dump(q)
	if err != nil {
		return nil, err
	}
	var all []Conn
	for _, m := range msgs {
		c, err := parseConn(m.Data)
		if err != nil {
			return nil, err
		}
		if (q.port == 0 || c.Local.Port() == q.port) && (q.peerPort == 0 || c.Peer.Port() == q.peerPort) {
			all = append(all, c)
		}
	}
	return all, nil
}

// query has the used fields of struct inet_diag_req_v2, or of struct inet_diag_req if family
// is 0: then the kernel walks its tables once for the TCP sockets of both families.
type query struct {
	family   uint8
	protocol uint32 // ignored if family is 0
	states   uint32
	ext      uint8
	port     uint16 // 0: any
	peerPort uint16 // likewise
}

// request is the message that asks for a dump.
func request(kind netlink.HeaderType, b []byte) netlink.Message {
	return netlink.Message{Header: netlink.Header{Type: kind, Flags: netlink.Request | netlink.Dump}, Data: b}
}

func (q query) encode() (netlink.Message, error) {
	if q.family == 0 {
		b := make([]byte, bothLen)
		b[0], b[3] = unix.AF_INET, q.ext // the kernel ignores the family, and ss(8) sends this one
		binary.BigEndian.PutUint16(b[4:], q.port)
		binary.BigEndian.PutUint16(b[6:], q.peerPort)
		binary.NativeEndian.PutUint32(b[52:], q.states)
		return request(tcpDiagGetSock, b), nil
	}
	b := make([]byte, requestLen)
	b[0], b[1], b[2] = q.family, uint8(q.protocol), q.ext
	binary.NativeEndian.PutUint32(b[4:], q.states)
	binary.BigEndian.PutUint16(b[8:], q.port)
	binary.BigEndian.PutUint16(b[10:], q.peerPort)
	if q.protocol <= 255 {
		return request(sockDiagByFamily, b), nil
	}
	e := netlink.NewAttributeEncoder()
	e.Uint32(reqProtocol, q.protocol)
	attrs, err := e.Encode()
	return request(sockDiagByFamily, append(b, attrs...)), err
}

func (d *Diag) dump(q query) ([]netlink.Message, error) {
	m, err := q.encode()
	if err != nil {
		return nil, err
	}
	return d.ask(m)
}

// ask makes a dump of a request.
func (d *Diag) ask(m netlink.Message) ([]netlink.Message, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.conn.SetDeadline(time.Now().Add(askLimit)); err != nil {
		return nil, err
	}
	msgs, err := d.conn.Execute(m)
	if err != nil && !answered(err) {
		err = errors.Join(err, d.reopen())
	}
	return msgs, err
}

// answered reports whether an error is the kernel's complete answer. Other errors are
// a timeout, an answer to an earlier query, a truncated answer, or a missing one
// because an earlier answer was not read.
func answered(err error) bool {
	var no unix.Errno
	return errors.As(err, &no) && no != unix.ENOBUFS && no != unix.EBUSY
}
