package nft

import (
	"encoding/binary"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

const (
	register = 1 // NFT_REG_1

	protocolIPv4, protocolIPv6 = 2, 10 // NFPROTO_IPV4, NFPROTO_IPV6 of netfilter.h
)

// TCP's flags, RFC 9293: a connect begins with SYN, and with none of the others
// of its mask.
const (
	flagFIN, flagSYN, flagRST, flagPSH, flagACK = 0x01, 0x02, 0x04, 0x08, 0x10

	synMask = flagFIN | flagSYN | flagRST | flagACK
)

// packets matches packets to the address and port that have only flag of the TCP flags
// in mask.
func (m Match) packets(mask, flag byte) []expr.Any {
	is := equal(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}, unix.IPPROTO_TCP)
	switch {
	case m.Addr.Is4():
		is = slices.Concat(is, equal(&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: register}, protocolIPv4),
			equal(payload(expr.PayloadBaseNetworkHeader, 16, 4), m.Addr.AsSlice()...)) // the destination in an IPv4 header, RFC 791
	case m.Addr.Is6():
		is = slices.Concat(is, equal(&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: register}, protocolIPv6),
			equal(payload(expr.PayloadBaseNetworkHeader, 24, 16), m.Addr.AsSlice()...)) // RFC 8200
	}
	return slices.Concat(is,
		equal(payload(expr.PayloadBaseTransportHeader, 2, 2), binary.BigEndian.AppendUint16(nil, m.Port)...),
		[]expr.Any{payload(expr.PayloadBaseTransportHeader, 13, 1)},
		equal(&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 1, Mask: []byte{mask}, Xor: []byte{0}}, flag))
}

// begins matches a SYN.
func (m Match) begins() []expr.Any { return m.packets(synMask, flagSYN) }

// remember adds the flow of a SYN to the set. The source port is sufficient to
// identify a flow among those to a port.
func (m Match) remember() []expr.Any {
	return append(m.begins(), sourcePort(), &expr.Dynset{SetName: flowSet, SetID: flowSetID, SrcRegKey: register, Operation: unix.NFT_DYNSET_OP_ADD})
}

// follows matches data on a remembered flow: the last segment of a write, which at
// the beginning of a connection is the only one.
func (m Match) follows() []expr.Any {
	return append(m.packets(flagPSH, flagPSH), sourcePort(), &expr.Lookup{SetName: flowSet, SetID: flowSetID, SourceRegister: register})
}

// sendTo sends a packet to a queue, or past it if no process serves the queue.
func (w Way) sendTo(queue uint16) expr.Any {
	if w == Native {
		return &expr.Queue{Num: queue, Total: 1, Flag: expr.QueueFlagBypass}
	}
	// struct xt_NFQ_info_v3 of xt_NFQUEUE.h, padded as XT_ALIGN does: queue,
	// number of queues, flags (NFQ_FLAG_BYPASS).
	info := make(xt.Unknown, 8)
	binary.NativeEndian.PutUint16(info[0:], queue)
	binary.NativeEndian.PutUint16(info[2:], 1)
	binary.NativeEndian.PutUint16(info[4:], 1)
	return &expr.Target{Name: "NFQUEUE", Rev: 3, Info: &info}
}

func sourcePort() expr.Any { return payload(expr.PayloadBaseTransportHeader, 0, 2) }

func payload(base expr.PayloadBase, offset, length uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: base, Offset: offset, Len: length}
}

// equal compares what load puts into the register.
func equal(load expr.Any, value ...byte) []expr.Any {
	return []expr.Any{load, &expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: value}}
}
