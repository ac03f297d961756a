package nft

import (
	"encoding/binary"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	register = 1 // NFT_REG_1

	metaProtocol   = 15 // NFT_META_NFPROTO
	metaL4Protocol = 16 // NFT_META_L4PROTO

	baseNetwork   = 1 // NFT_PAYLOAD_NETWORK_HEADER
	baseTransport = 2 // NFT_PAYLOAD_TRANSPORT_HEADER

	protocolIPv4, protocolIPv6 = 2, 10 // NFPROTO_IPV4, NFPROTO_IPV6 of netfilter.h
)

// TCP's flags, RFC 9293: a connect begins with SYN, and with none of the others
// of its mask.
const (
	flagFIN, flagSYN, flagRST, flagPSH, flagACK = 0x01, 0x02, 0x04, 0x08, 0x10

	synMask = flagFIN | flagSYN | flagRST | flagACK
)

// encode appends the expressions that match a packet to the address and port. The
// register then has the packet's TCP flags in mask.
func (m Match) encode(e *netlink.AttributeEncoder, mask byte) {
	meta(e, metaL4Protocol)
	equal(e, []byte{unix.IPPROTO_TCP})
	switch {
	case m.Addr.Is4():
		meta(e, metaProtocol)
		equal(e, []byte{protocolIPv4})
		payload(e, baseNetwork, 16, 4) // the destination in an IPv4 header, RFC 791
		equal(e, m.Addr.AsSlice())
	case m.Addr.Is6():
		meta(e, metaProtocol)
		equal(e, []byte{protocolIPv6})
		payload(e, baseNetwork, 24, 16) // RFC 8200
		equal(e, m.Addr.AsSlice())
	}
	payload(e, baseTransport, 2, 2)
	equal(e, binary.BigEndian.AppendUint16(nil, m.Port))
	payload(e, baseTransport, 13, 1)
	and(e, mask)
}

// sourcePort loads the source port, which is sufficient to identify a flow among
// those to a port.
func sourcePort(e *netlink.AttributeEncoder) { payload(e, baseTransport, 0, 2) }

// remember adds the flow of a SYN to the set.
func (m Match) remember(e *netlink.AttributeEncoder) {
	m.begins(e)
	sourcePort(e)
	expression(e, "dynset", func(e *netlink.AttributeEncoder) {
		e.String(1, flowSet)  // NFTA_DYNSET_SET_NAME
		e.Uint32(2, 1)        // NFTA_DYNSET_SET_ID: as it is made in this transaction
		e.Uint32(3, 0)        // NFTA_DYNSET_OP: NFT_DYNSET_OP_ADD
		e.Uint32(4, register) // NFTA_DYNSET_SREG_KEY
	})
}

// begins matches a SYN.
func (m Match) begins(e *netlink.AttributeEncoder) {
	m.encode(e, synMask)
	equal(e, []byte{flagSYN})
}

// follows matches data on a remembered flow: the last segment of a write, which at
// the beginning of a connection is the only one.
func (m Match) follows(e *netlink.AttributeEncoder) {
	m.encode(e, flagPSH)
	equal(e, []byte{flagPSH})
	sourcePort(e)
	expression(e, "lookup", func(e *netlink.AttributeEncoder) {
		e.String(1, flowSet)  // NFTA_LOOKUP_SET
		e.Uint32(2, register) // NFTA_LOOKUP_SREG
		e.Uint32(4, 1)        // NFTA_LOOKUP_SET_ID
	})
}

// encode appends the expression that queues.
func (w Way) encode(e *netlink.AttributeEncoder, queue uint16) {
	if w == Native {
		expression(e, "queue", func(e *netlink.AttributeEncoder) {
			e.Uint16(1, queue) // NFTA_QUEUE_NUM
			e.Uint16(2, 1)     // NFTA_QUEUE_TOTAL
			e.Uint16(3, 1)     // NFTA_QUEUE_FLAGS: NFT_QUEUE_FLAG_BYPASS
		})
		return
	}
	// struct xt_NFQ_info_v3 of xt_NFQUEUE.h, padded as XT_ALIGN does: queue,
	// number of queues, flags (NFQ_FLAG_BYPASS).
	info := make([]byte, 8)
	binary.NativeEndian.PutUint16(info[0:], queue)
	binary.NativeEndian.PutUint16(info[2:], 1)
	binary.NativeEndian.PutUint16(info[4:], 1)
	expression(e, "target", func(e *netlink.AttributeEncoder) {
		e.String(1, "NFQUEUE") // NFTA_TARGET_NAME
		e.Uint32(2, 3)         // NFTA_TARGET_REV
		e.Bytes(3, info)       // NFTA_TARGET_INFO
	})
}

func meta(e *netlink.AttributeEncoder, key uint32) {
	expression(e, "meta", func(e *netlink.AttributeEncoder) {
		e.Uint32(1, register) // NFTA_META_DREG
		e.Uint32(2, key)      // NFTA_META_KEY
	})
}

func payload(e *netlink.AttributeEncoder, base, offset, length uint32) {
	expression(e, "payload", func(e *netlink.AttributeEncoder) {
		e.Uint32(1, register) // NFTA_PAYLOAD_DREG
		e.Uint32(2, base)     // NFTA_PAYLOAD_BASE
		e.Uint32(3, offset)   // NFTA_PAYLOAD_OFFSET
		e.Uint32(4, length)   // NFTA_PAYLOAD_LEN
	})
}

func and(e *netlink.AttributeEncoder, mask byte) {
	expression(e, "bitwise", func(e *netlink.AttributeEncoder) {
		e.Uint32(1, register)    // NFTA_BITWISE_SREG
		e.Uint32(2, register)    // NFTA_BITWISE_DREG
		e.Uint32(3, 1)           // NFTA_BITWISE_LEN
		data(e, 4, []byte{mask}) // NFTA_BITWISE_MASK
		data(e, 5, []byte{0})    // NFTA_BITWISE_XOR
	})
}

func equal(e *netlink.AttributeEncoder, value []byte) {
	expression(e, "cmp", func(e *netlink.AttributeEncoder) {
		e.Uint32(1, register) // NFTA_CMP_SREG
		e.Uint32(2, 0)        // NFTA_CMP_OP: NFT_CMP_EQ
		data(e, 3, value)     // NFTA_CMP_DATA
	})
}

func data(e *netlink.AttributeEncoder, kind uint16, value []byte) {
	e.Nested(kind, func(e *netlink.AttributeEncoder) error {
		e.Bytes(1, value) // NFTA_DATA_VALUE
		return nil
	})
}

func expression(e *netlink.AttributeEncoder, name string, body func(*netlink.AttributeEncoder)) {
	e.Nested(1, func(e *netlink.AttributeEncoder) error { // NFTA_LIST_ELEM
		e.String(1, name)                                     // NFTA_EXPR_NAME
		e.Nested(2, func(e *netlink.AttributeEncoder) error { // NFTA_EXPR_DATA
			body(e)
			return nil
		})
		return nil
	})
}
