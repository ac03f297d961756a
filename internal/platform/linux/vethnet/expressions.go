package vethnet

import (
	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The expressions of nftables rules. The numbers are those of
// include/uapi/linux/netfilter/nf_tables.h, unless another header is named.

// metaOIFKIND is NFT_META_OIFKIND: the kind of device that a packet leaves by.
const metaOIFKIND expr.MetaKey = 27

// natOfDestination is IPS_DST_NAT of nf_conntrack_common.h: the connection has
// destination NAT, for example a published port.
const natOfDestination = 1 << 5

// ifName is a device's name padded with zeros, as the kernel compares it.
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

// device compares the name, or the kind, of a packet's device.
func device(key expr.MetaKey, op expr.CmpOp, name string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: ifName(name)}}
}

// member matches packets with a device in a set, or not in it.
func member(key expr.MetaKey, s *nftables.Set, invert bool) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Lookup{SourceRegister: 1, SetName: s.Name, SetID: s.ID, Invert: invert}}
}

// replies matches reply packets of connections.
func replies() []expr.Any {
	return tracked(expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED)
}

// published matches packets to a published port of the host.
func published() []expr.Any { return tracked(expr.CtKeySTATUS, natOfDestination) }

// tracked matches connections with one of some conntrack bits.
func tracked(key expr.CtKey, bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: key, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

func verdict(k expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: k}} }
