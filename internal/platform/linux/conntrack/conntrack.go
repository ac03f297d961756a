// Package conntrack reads the entries of a connection tracking table (nf_conntrack).
package conntrack

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Flow is one entry. Client sent the first packet, and Server answers. Where the kernel translates
// addresses, both are the untranslated ones: a container behind a port of the host is its own Server.
type Flow struct {
	Protocol       uint8 // unix.IPPROTO_TCP and others
	Client, Server netip.AddrPort
}

// Constants of include/uapi/linux/netfilter/nfnetlink.h and nfnetlink_conntrack.h.
const (
	get        = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1 // IPCTNL_MSG_CT_GET
	headerLen  = 4                                 // struct nfgenmsg
	tupleOrig  = 1                                 // CTA_TUPLE_ORIG
	tupleReply = 2                                 // CTA_TUPLE_REPLY
	tupleIP    = 1                                 // CTA_TUPLE_IP
	tupleProto = 2                                 // CTA_TUPLE_PROTO
	ipV4Src    = 1                                 // CTA_IP_V4_SRC
	ipV6Src    = 3                                 // CTA_IP_V6_SRC
	protoNum   = 1                                 // CTA_PROTO_NUM
	protoSrc   = 2                                 // CTA_PROTO_SRC_PORT
)

// readLimit bounds the reading of a table.
const readLimit = 10 * time.Second

// Flows returns entries of the table of the calling thread's network namespace, at most most of them. The kernel lists them
// by a hash of their addresses, so the first ones of a large table are a random sample. It takes at most ten seconds. It needs
// CAP_NET_ADMIN, and the kernel loads nf_conntrack_netlink if it is a module. Any goroutine may call it.
func Flows(most int) ([]Flow, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("read the connection tracking table: %w", err)
	}
	defer c.Close()
	flows, err := read(c, most)
	if err != nil {
		return nil, fmt.Errorf("read the connection tracking table: %w", err)
	}
	return flows, nil
}

func read(c *netlink.Conn, most int) ([]Flow, error) {
	if err := c.SetDeadline(time.Now().Add(readLimit)); err != nil {
		return nil, err
	}
	// The family AF_UNSPEC asks for the entries of IPv4 and of IPv6.
	_, err := c.Send(netlink.Message{Header: netlink.Header{Type: get, Flags: netlink.Request | netlink.Dump}, Data: make([]byte, headerLen)})
	if err != nil {
		return nil, err
	}
	var flows []Flow
	for m, err := range c.ReceiveIter() {
		if err != nil {
			return nil, err
		}
		f, err := parse(m.Data)
		if err != nil {
			return nil, err
		}
		if flows = append(flows, f); len(flows) == most {
			break
		}
	}
	return flows, nil
}

func parse(b []byte) (Flow, error) {
	if len(b) < headerLen {
		return Flow{}, fmt.Errorf("an entry of %d bytes", len(b))
	}
	d, err := netlink.NewAttributeDecoder(b[headerLen:])
	if err != nil {
		return Flow{}, err
	}
	d.ByteOrder = binary.BigEndian
	var f Flow
	for d.Next() {
		switch d.Type() {
		case tupleOrig:
			f.Protocol, f.Client = source(d)
		case tupleReply:
			_, f.Server = source(d)
		}
	}
	return f, d.Err()
}

// source reads the protocol and the source address of a tuple.
func source(d *netlink.AttributeDecoder) (protocol uint8, at netip.AddrPort) {
	var addr netip.Addr
	var port uint16
	d.Nested(func(tuple *netlink.AttributeDecoder) error {
		for tuple.Next() {
			kind := tuple.Type()
			tuple.Nested(func(part *netlink.AttributeDecoder) error {
				for part.Next() {
					switch {
					case kind == tupleIP && (part.Type() == ipV4Src || part.Type() == ipV6Src):
						addr, _ = netip.AddrFromSlice(part.Bytes())
					case kind == tupleProto && part.Type() == protoNum:
						protocol = part.Uint8()
					case kind == tupleProto && part.Type() == protoSrc:
						port = part.Uint16()
					}
				}
				return nil
			})
		}
		return nil
	})
	return protocol, netip.AddrPortFrom(addr, port)
}
