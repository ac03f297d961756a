package plug

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A packet that opens a connection has only SYN of these flags (RFC 9293, 3.1).
const (
	synFlag  = 0x02
	flagMask = 0x17 // FIN, SYN, RST, ACK
)

// maxPassing limits the sources that pass a plug at once. Their filters have the priorities
// 1 to maxPassing, before those of the plug.
const maxPassing = 64

// filter sends the SYNs of each match to the plug.
func (p *Plug) filter(matches []Match) error {
	priority := uint16(maxPassing)
	for _, m := range matches {
		for _, f := range families(m.Addr) {
			priority++
			if err := p.flower(priority, f, plugLane, m, netip.AddrPort{}); err != nil {
				return err
			}
		}
	}
	return nil
}

// unfilter removes all filters.
func (p *Plug) unfilter() error {
	// Without a priority all filters go (tc_del_tfilter, net/sched/cls_api.c).
	_, err := p.request(unix.RTM_DELTFILTER, 0, 0, rootHandle).Execute(unix.NETLINK_ROUTE, 0)
	if errors.Is(err, unix.ENOENT) { // there is none
		err = nil
	}
	if err != nil {
		return fmt.Errorf("remove the filters of a plug: %w", err)
	}
	return nil
}

// Pass lets SYNs from one source to a port pass the plug, until end is called.
func (p *Plug) Pass(from netip.AddrPort, port uint16) (end func(), err error) {
	p.passed = p.passed%maxPassing + 1
	priority, family := p.passed, families(from.Addr())[0]
	if err := p.flower(priority, family, restLane, Match{Port: port}, from); err != nil {
		return nil, fmt.Errorf("let a source pass the plug: %w", err)
	}
	return func() {
		// It is there, or its qdisc is not.
		_, _ = p.filterRequest(unix.RTM_DELTFILTER, 0, priority, family).Execute(unix.NETLINK_ROUTE, 0)
	}, nil
}

// families returns the ethernet protocols of an address.
func families(a netip.Addr) []uint16 {
	switch a = a.Unmap(); {
	case !a.IsValid() || a.IsUnspecified():
		return []uint16{unix.ETH_P_IP, unix.ETH_P_IPV6}
	case a.Is4():
		return []uint16{unix.ETH_P_IP}
	}
	return []uint16{unix.ETH_P_IPV6}
}

// filterRequest is a request for the filters of a priority.
func (p *Plug) filterRequest(message, flags int, priority, family uint16) *nl.NetlinkRequest {
	req := p.request(message, flags, 0, rootHandle)
	// tcm_info: the priority, and the protocol in network order.
	msg := req.Data[0].(*nl.TcMsg)
	msg.Info = uint32(priority)<<16 | uint32(binary.NativeEndian.Uint16(big(family)))
	return req
}

// flower sends SYNs to a lane. Those from any source, if from is zero.
func (p *Plug) flower(priority, family uint16, lane uint32, m Match, from netip.AddrPort) error {
	req := p.filterRequest(unix.RTM_NEWTFILTER, unix.NLM_F_CREATE|unix.NLM_F_EXCL, priority, family)
	req.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("flower")))
	o := nl.NewRtAttr(nl.TCA_OPTIONS, nil)
	o.AddRtAttr(nl.TCA_FLOWER_CLASSID, nl.Uint32Attr(lane))
	o.AddRtAttr(nl.TCA_FLOWER_KEY_ETH_TYPE, big(family))
	o.AddRtAttr(nl.TCA_FLOWER_KEY_IP_PROTO, []byte{unix.IPPROTO_TCP})
	o.AddRtAttr(nl.TCA_FLOWER_KEY_TCP_DST, big(m.Port))
	o.AddRtAttr(nl.TCA_FLOWER_KEY_TCP_DST_MASK, big(0xffff))
	o.AddRtAttr(nl.TCA_FLOWER_KEY_TCP_FLAGS, big(synFlag))
	o.AddRtAttr(nl.TCA_FLOWER_KEY_TCP_FLAGS_MASK, big(flagMask))
	address(o, m.Addr, [...]int{nl.TCA_FLOWER_KEY_IPV4_DST, nl.TCA_FLOWER_KEY_IPV4_DST_MASK}, [...]int{nl.TCA_FLOWER_KEY_IPV6_DST, nl.TCA_FLOWER_KEY_IPV6_DST_MASK})
	if from.IsValid() {
		o.AddRtAttr(nl.TCA_FLOWER_KEY_TCP_SRC, big(from.Port()))
		o.AddRtAttr(nl.TCA_FLOWER_KEY_TCP_SRC_MASK, big(0xffff))
		address(o, from.Addr(), [...]int{nl.TCA_FLOWER_KEY_IPV4_SRC, nl.TCA_FLOWER_KEY_IPV4_SRC_MASK}, [...]int{nl.TCA_FLOWER_KEY_IPV6_SRC, nl.TCA_FLOWER_KEY_IPV6_SRC_MASK})
	}
	req.AddData(o)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return missing("cls_flower", err)
}

// address adds an address to a filter's options, unless it means any; ipv4 and ipv6 are the
// types of the key and of its mask.
func address(o *nl.RtAttr, a netip.Addr, ipv4, ipv6 [2]int) {
	if a = a.Unmap(); !a.IsValid() || a.IsUnspecified() {
		return
	}
	of := ipv4
	if a.Is6() {
		of = ipv6
	}
	o.AddRtAttr(of[0], a.AsSlice())
	o.AddRtAttr(of[1], net.CIDRMask(a.BitLen(), a.BitLen()))
}

// big encodes a number in network byte order.
func big(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }
