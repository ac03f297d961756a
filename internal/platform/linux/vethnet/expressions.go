package vethnet

import (
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// What rules of nftables are made of. The numbers are those of
// include/uapi/linux/netfilter/nf_tables.h, where no other header is named.

// metaOIFKIND is NFT_META_OIFKIND: the kind of device that a packet leaves by.
const metaOIFKIND expr.MetaKey = 27

// natOfDestination is IPS_DST_NAT of nf_conntrack_common.h: somebody has changed
// where the connection goes, as for a port that is published.
const natOfDestination = 1 << 5

// ifName is a device's name as the kernel compares it: filled up with zeros.
func ifName(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

func elements(names []string) []nftables.SetElement {
	var list []nftables.SetElement
	for _, n := range names {
		list = append(list, nftables.SetElement{Key: ifName(n)})
	}
	return list
}

// device compares the name of a packet's device.
func device(key expr.MetaKey, op expr.CmpOp, name string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: ifName(name)}}
}

// member is true of packets whose device is in a set, or is not.
func member(key expr.MetaKey, s *nftables.Set, invert bool) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Lookup{SourceRegister: 1, SetName: s.Name, SetID: s.ID, Invert: invert}}
}

// kind is true of packets that leave by a device of a kind.
func kind(name string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: metaOIFKIND, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: ifName(name)}}
}

// answers is true of packets of connections that the other side has begun.
func answers() []expr.Any {
	return tracked(expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED)
}

// published is true of packets that went to a port of the host's at first.
func published() []expr.Any { return tracked(expr.CtKeySTATUS, natOfDestination) }

// tracked is true where the connection has one of some bits.
func tracked(key expr.CtKey, bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: key, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

func verdict(k expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: k}} }

func maskOf(p netip.Prefix) []byte { return net.CIDRMask(p.Bits(), 32) }
