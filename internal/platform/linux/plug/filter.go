package plug

import (
	"encoding/binary"
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

// filter sends the SYNs of each match to the plug.
func (p *Plug) filter(matches []Match) error {
	priority := uint16(0)
	for _, m := range matches {
		for _, f := range families(m.Addr) {
			priority++
			if err := p.flower(priority, f, m); err != nil {
				return err
			}
		}
	}
	return nil
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

func (p *Plug) flower(priority, family uint16, m Match) error {
	req := p.request(unix.RTM_NEWTFILTER, unix.NLM_F_CREATE|unix.NLM_F_EXCL, 0, rootHandle)
	// tcm_info: the priority, and the protocol in network order.
	msg := req.Data[0].(*nl.TcMsg)
	msg.Info = uint32(priority)<<16 | uint32(binary.NativeEndian.Uint16(big(family)))
	req.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("flower")))
	o := nl.NewRtAttr(nl.TCA_OPTIONS, nil)
	o.AddRtAttr(nl.TCA_FLOWER_CLASSID, nl.Uint32Attr(plugLane))
	o.AddRtAttr(nl.TCA_FLOWER_KEY_ETH_TYPE, big(family))
	o.AddRtAttr(nl.TCA_FLOWER_KEY_IP_PROTO, []byte{unix.IPPROTO_TCP})
	o.AddRtAttr(nl.TCA_FLOWER_KEY_TCP_DST, big(m.Port))
	o.AddRtAttr(nl.TCA_FLOWER_KEY_TCP_DST_MASK, big(0xffff))
	o.AddRtAttr(nl.TCA_FLOWER_KEY_TCP_FLAGS, big(synFlag))
	o.AddRtAttr(nl.TCA_FLOWER_KEY_TCP_FLAGS_MASK, big(flagMask))
	if a := m.Addr.Unmap(); a.IsValid() && !a.IsUnspecified() {
		key, mask := nl.TCA_FLOWER_KEY_IPV4_DST, nl.TCA_FLOWER_KEY_IPV4_DST_MASK
		if a.Is6() {
			key, mask = nl.TCA_FLOWER_KEY_IPV6_DST, nl.TCA_FLOWER_KEY_IPV6_DST_MASK
		}
		o.AddRtAttr(key, a.AsSlice())
		o.AddRtAttr(mask, net.CIDRMask(a.BitLen(), a.BitLen()))
	}
	req.AddData(o)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return missing("cls_flower", err)
}

// big encodes a number in network byte order.
func big(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }
