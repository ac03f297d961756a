// Package plug holds new TCP connections on their way out of a device: a queueing
// discipline with two lanes, one of them a plug (net/sched/sch_plug.c) that keeps
// packets until it is released, and filters that send SYNs to some ports there.
//
//	root prio 4846: ── 4846:1 ── plug 4847:    SYNs to the ports
//	                └─ 4846:2 ── pfifo 4848:   everything else
//
// Packets of a host to itself leave by lo, so a plug there holds every local client;
// packets from other hosts never pass it. The filters recognise SYNs by their TCP
// flags (net/sched/cls_flower.c) and not by a firewall mark. Everything is below one
// root qdisc, and is gone when that is deleted.
//
// TCP does not retransmit a waiting SYN, because it is still in a queue of the host
// (tcp_retransmit_skb, skb_still_in_host_queue in net/ipv4/tcp_output.c).
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
	// ErrInUse means that the device has a foreign root qdisc.
	ErrInUse = errors.New("the device has a root queueing discipline of its own")
	// ErrExists means that the device already has a plug of this package.
	ErrExists = errors.New("the device already has such a plug")
	// ErrNone means that the device has no plug of this package.
	ErrNone = errors.New("the device has no such plug")
	// ErrUnsupported means that the kernel lacks a needed module.
	ErrUnsupported = errors.New("not in this kernel")
)

// Limits of the lanes. A SYN is 74 bytes on lo with IPv4 and 94 with IPv6, so that
// some 90,000 can wait; those beyond are dropped and sent again after a second.
const (
	heldBytes   = 8 << 20
	restPackets = 10000
)

// drainLimit bounds the wait until released packets have left the queue.
const drainLimit = 2 * time.Second

// Handles of the qdiscs. The root's handle identifies a plug of this package.
var (
	rootHandle = netlink.MakeHandle(0x4846, 0) // "HF"
	plugHandle = netlink.MakeHandle(0x4847, 0)
	restHandle = netlink.MakeHandle(0x4848, 0)
	// The plug's lane is first, so that released packets do not wait for others.
	plugLane = netlink.MakeHandle(0x4846, 1)
	restLane = netlink.MakeHandle(0x4846, 2)
)

// Plug is a plug on a device. Its methods may be called by any goroutine, one at
// a time.
type Plug struct {
	index  int
	passed uint16 // priority of the last filter of Pass
}

// Match selects SYNs by destination.
type Match struct {
	Addr netip.Addr // the zero Addr and the unspecified ones match any address of both families
	Port uint16
}

// Install puts an open plug on a device; no packet enters it until Hold. While the kernel
// replaces the device's root qdisc (about a millisecond) it drops packets, which TCP
// retransmits. Install does not replace a foreign root qdisc: ErrInUse.
func Install(device string) (*Plug, error) {
	p, err := open(device)
	if err != nil {
		return nil, err
	}
	if err := p.vacant(); err != nil {
		return nil, fmt.Errorf("put a plug on %s: %w", device, err)
	}
	if err := p.build(); err != nil {
		return nil, errors.Join(fmt.Errorf("put a plug on %s: %w", device, err), p.delete())
	}
	return p, nil
}

// Vacant returns nil if Install would succeed, else ErrExists or ErrInUse.
func Vacant(device string) error {
	p, err := open(device)
	if err == nil {
		err = p.vacant()
	}
	if err != nil {
		return fmt.Errorf("check the root qdisc of %s: %w", device, err)
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

// Find returns the plug of a device, or ErrNone.
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

func (p *Plug) build() error {
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
	return p.control(actionReleaseIndefinite) // a new plug is closed
}

// set makes a qdisc with NLM_F_CREATE, and else changes it.
func (p *Plug) set(kind string, flags int, handle, parent uint32, options []byte) error {
	req := p.request(unix.RTM_NEWQDISC, flags, handle, parent)
	req.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated(kind)))
	req.AddData(nl.NewRtAttr(nl.TCA_OPTIONS, options))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

func (p *Plug) add(kind string, handle, parent uint32, options []byte) error {
	return missing("sch_"+kind, p.set(kind, unix.NLM_F_CREATE|unix.NLM_F_EXCL, handle, parent, options))
}

// missing names the module if the kernel does not know a kind, for which it returns
// ENOENT (tc_modify_qdisc, tc_new_tfilter).
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

func (p *Plug) control(action uint32) error {
	return p.set("plug", 0, plugHandle, plugLane, plugOptions(action, 0))
}

// Hold sends SYNs to the plug and closes it: they wait from now on. It drops no packet. A
// plug that holds is not held again before Release.
func (p *Plug) Hold(matches ...Match) error {
	err := p.filter(matches) // the plug is still open
	if err == nil {
		err = p.control(actionBuffer)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("close the plug: %w", err), p.unfilter())
	}
	return nil
}

// Release releases all waiting SYNs in their order, and opens the plug. It returns when no SYN
// waits any more, and none enters the plug. It drops no packet, and is idempotent.
func (p *Plug) Release() error {
	if err := p.control(actionReleaseIndefinite); err != nil {
		return fmt.Errorf("open the plug: %w", err)
	}
	for deadline := time.Now().Add(drainLimit); ; time.Sleep(time.Millisecond) {
		s, err := p.Stats()
		if err != nil {
			return fmt.Errorf("open the plug: %w", err)
		}
		if s.Waiting == 0 {
			return p.unfilter()
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("open the plug: %d packets are in it after %v", s.Waiting, drainLimit)
		}
	}
}

// Stats are the counters of a plug.
type Stats struct {
	Waiting int // SYNs
	Dropped int // SYNs, because the plug was full
}

// Stats reads the plug's counters.
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
	return Stats{}, fmt.Errorf("read a plug's counters: %w", ErrNone)
}

// Remove releases all waiting SYNs and removes plug, lanes and filters. The device
// has the kernel's default qdisc again; the replacement drops packets as in Install.
// Remove is idempotent.
func (p *Plug) Remove() error {
	handle, _, err := p.root()
	if err != nil {
		return fmt.Errorf("remove a plug: %w", err)
	}
	if handle != rootHandle {
		return nil
	}
	// An incomplete one may have no plug to open; only the deletion has to succeed.
	release := p.Release()
	if err := p.delete(); err != nil {
		return fmt.Errorf("remove a plug: %w", errors.Join(release, err))
	}
	return nil
}

// delete removes the root qdisc if it is of this package.
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
		if errors.Is(err, netlink.ErrDumpInterrupted) { // the list changed during the dump
			continue
		}
		return all, err
	}
	return nil, errors.New("the list of queueing disciplines keeps changing")
}

// root returns the handle and the kind of the device's root qdisc. The kernel's
// default has no handle, and is not listed for a device that is down.
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
