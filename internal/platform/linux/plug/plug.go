// Package plug holds new TCP connections on their way out of a device: a queueing
// discipline with two lanes, one of them a plug (net/sched/sch_plug.c) that keeps
// what comes until it is let go, and filters that send SYNs to some ports there.
//
//	root prio 4846: ── 4846:1 ── plug 4847:    SYNs to the ports
//	                └─ 4846:2 ── pfifo 4848:   everything else
//
// What a host sends to itself leaves by lo, so that a plug there holds every local
// client; what comes from other hosts never passes it. The SYNs are told by their
// flags (net/sched/cls_flower.c) and not by a firewall's mark: all there is hangs
// from one root qdisc, and is gone when that is deleted.
//
// A SYN that waits is not sent again: TCP leaves alone what still sits in a queue
// of the host (tcp_retransmit_skb, skb_still_in_host_queue in
// net/ipv4/tcp_output.c).
//
// The kernel needs sch_plug (3.4), sch_prio and cls_flower (TCP flags: 4.13), and
// the caller CAP_NET_ADMIN. All calls act on the network namespace of the calling
// thread.
package plug

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

var (
	// ErrInUse means that the device has a root qdisc of somebody else.
	ErrInUse = errors.New("the device has a root queueing discipline of its own")
	// ErrExists means that the device has a plug of this package already.
	ErrExists = errors.New("the device has such a plug already")
	// ErrNone means that the device has no plug of this package.
	ErrNone = errors.New("the device has no such plug")
	// ErrUnsupported means that the kernel lacks what it takes.
	ErrUnsupported = errors.New("not in this kernel")
)

// Limits of the lanes. A SYN is 74 bytes on lo with IPv4 and 94 with IPv6, so that
// some 90,000 can wait; those beyond are dropped and sent again after a second.
const (
	heldBytes   = 8 << 20
	restPackets = 10000
)

// drainLimit bounds waiting for what was let go to have left the queue.
const drainLimit = 2 * time.Second

// Handles of the qdiscs. The root's is how a plug is known as ours.
var (
	rootHandle = netlink.MakeHandle(0x4846, 0) // "HF"
	plugHandle = netlink.MakeHandle(0x4847, 0)
	restHandle = netlink.MakeHandle(0x4848, 0)
	// The plug's lane is first, so that what it lets go of is not kept
	// waiting by the rest.
	plugLane = netlink.MakeHandle(0x4846, 1)
	restLane = netlink.MakeHandle(0x4846, 2)
)

// Plug is a plug on a device. Its methods may be called by any goroutine, one at
// a time.
type Plug struct{ index int }

// Match chooses SYNs by where they go.
type Match struct {
	Addr netip.Addr // the zero Addr and the unspecified ones mean any of both families
	Port uint16
}

// Install puts a plug on a device; SYNs pass until Hold. While the kernel swaps
// the device's root qdisc (about a millisecond) it drops what is sent, and TCP
// sends that again. A device with a root qdisc that somebody has set is left as it
// is: ErrInUse.
func Install(device string, matches ...Match) (*Plug, error) {
	p, err := open(device)
	if err != nil {
		return nil, err
	}
	if err := p.vacant(); err != nil {
		return nil, fmt.Errorf("put a plug on %s: %w", device, err)
	}
	if err := p.build(matches); err != nil {
		return nil, errors.Join(fmt.Errorf("put a plug on %s: %w", device, err), p.delete())
	}
	return p, nil
}

// Vacant returns nil where Install would find a place: else ErrExists or ErrInUse.
func Vacant(device string) error {
	p, err := open(device)
	if err == nil {
		err = p.vacant()
	}
	if err != nil {
		return fmt.Errorf("look for a place for a plug on %s: %w", device, err)
	}
	return nil
}

func (p *Plug) vacant() error {
	switch handle, kind, err := p.root(); {
	case err != nil:
		return err
	case handle == rootHandle:
		return ErrExists
	case handle != 0:
		return fmt.Errorf("%w: %s", ErrInUse, kind)
	}
	return nil
}

// Find returns the plug that a device has: ErrNone where there is none.
func Find(device string) (*Plug, error) {
	p, err := open(device)
	if err != nil {
		return nil, err
	}
	handle, _, err := p.root()
	if err == nil && handle != rootHandle {
		err = ErrNone
	}
	if err != nil {
		return nil, fmt.Errorf("find a plug on %s: %w", device, err)
	}
	return p, nil
}

func open(device string) (*Plug, error) {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return nil, fmt.Errorf("find device %s: %w", device, err)
	}
	return &Plug{index: link.Attrs().Index}, nil
}

// build makes the qdiscs and then the filters, so that no SYN comes to a plug that
// is not open.
func (p *Plug) build(matches []Match) error {
	prio := make([]byte, 4, 20) // struct tc_prio_qopt: bands, and the lane of each priority
	binary.NativeEndian.PutUint32(prio, 2)
	for range 16 {
		prio = append(prio, 1)
	}
	if err := p.add("prio", rootHandle, netlink.HANDLE_ROOT, prio); err != nil {
		return err
	}
	if err := p.add("pfifo", restHandle, restLane, binary.NativeEndian.AppendUint32(nil, restPackets)); err != nil {
		return err
	}
	if err := p.add("plug", plugHandle, plugLane, plugOptions(actionLimit, heldBytes)); err != nil {
		return err
	}
	if err := p.tell(actionReleaseIndefinite); err != nil { // a new one is closed
		return err
	}
	return p.filter(matches)
}

// add makes a qdisc.
func (p *Plug) add(kind string, handle, parent uint32, options []byte) error {
	req := p.request(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_EXCL, handle, parent)
	req.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated(kind)))
	req.AddData(nl.NewRtAttr(nl.TCA_OPTIONS, options))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return missing("sch_"+kind, err)
}

// missing names the module where the kernel knows no such kind: it answers ENOENT
// (tc_modify_qdisc, tc_new_tfilter).
func missing(module string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%s: %w", module, ErrUnsupported)
	}
	return fmt.Errorf("%s: %w", module, err)
}

// The actions of struct tc_plug_qopt (include/uapi/linux/pkt_sched.h).
const (
	actionBuffer            = 0
	actionReleaseIndefinite = 2
	actionLimit             = 3
)

func plugOptions(action, limit uint32) []byte {
	return binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, action), limit)
}

func (p *Plug) tell(action uint32) error {
	req := p.request(unix.RTM_NEWQDISC, 0, plugHandle, plugLane)
	req.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("plug")))
	req.AddData(nl.NewRtAttr(nl.TCA_OPTIONS, plugOptions(action, 0)))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// Hold closes the plug: SYNs wait from now on. Closing a closed one is fine.
func (p *Plug) Hold() error {
	if err := p.tell(actionBuffer); err != nil {
		return fmt.Errorf("close the plug: %w", err)
	}
	return nil
}

// Release lets all go that waits, in the order in which it came, and what comes
// from now on. It returns once nothing waits any more.
func (p *Plug) Release() error {
	if err := p.tell(actionReleaseIndefinite); err != nil {
		return fmt.Errorf("open the plug: %w", err)
	}
	for deadline := time.Now().Add(drainLimit); ; time.Sleep(time.Millisecond) {
		s, err := p.Stats()
		if err != nil {
			return fmt.Errorf("open the plug: %w", err)
		}
		if s.Waiting == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("open the plug: %d packets are in it after %v", s.Waiting, drainLimit)
		}
	}
}

// Stats are figures of a plug.
type Stats struct {
	Waiting int // SYNs
	Dropped int // SYNs, because the plug was full
}

// Stats reads the plug's figures.
func (p *Plug) Stats() (Stats, error) {
	all, err := p.list()
	if err != nil {
		return Stats{}, err
	}
	for _, q := range all {
		if q.Attrs().Handle != plugHandle {
			continue
		}
		if s := q.Attrs().Statistics; s != nil && s.Queue != nil {
			return Stats{Waiting: int(s.Queue.Qlen), Dropped: int(s.Queue.Drops)}, nil
		}
	}
	return Stats{}, fmt.Errorf("read a plug's figures: %w", ErrNone)
}

// Remove lets all go that waits and removes plug, lanes and filters. The device
// has the kernel's default again; the swap costs what it costs in Install.
// Removing what is gone is fine.
func (p *Plug) Remove() error {
	handle, _, err := p.root()
	if err != nil {
		return fmt.Errorf("remove a plug: %w", err)
	}
	if handle != rootHandle {
		return nil
	}
	// What is left of a half-made one has no plug to open; deleting is what
	// counts.
	release := p.Release()
	if err := p.delete(); err != nil {
		return fmt.Errorf("remove a plug: %w", errors.Join(release, err))
	}
	return nil
}

// delete removes the root qdisc if it is ours.
func (p *Plug) delete() error {
	handle, _, err := p.root()
	if err != nil || handle != rootHandle {
		return err
	}
	_, err = p.request(unix.RTM_DELQDISC, 0, rootHandle, netlink.HANDLE_ROOT).Execute(unix.NETLINK_ROUTE, 0)
	return err
}

func (p *Plug) request(message, flags int, handle, parent uint32) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(message, flags|unix.NLM_F_ACK)
	req.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(p.index), Handle: handle, Parent: parent})
	return req
}

// list returns the device's qdiscs.
func (p *Plug) list() ([]netlink.Qdisc, error) {
	link := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: p.index}}
	for range 10 {
		all, err := netlink.QdiscList(link)
		if errors.Is(err, netlink.ErrDumpInterrupted) { // changed meanwhile
			continue
		}
		return all, err
	}
	return nil, errors.New("the list of queueing disciplines never stands still")
}

// root returns the handle and the kind of the device's root qdisc. The kernel's own
// default has no handle, and on a device that is down it is not shown at all.
func (p *Plug) root() (handle uint32, kind string, err error) {
	all, err := p.list()
	if err != nil {
		return 0, "", fmt.Errorf("list queueing disciplines: %w", err)
	}
	for _, q := range all {
		if q.Attrs().Parent == netlink.HANDLE_ROOT {
			return q.Attrs().Handle, q.Type(), nil
		}
	}
	return 0, "", nil
}
