// Package nft makes nftables tables, over netlink, that send the SYNs to chosen
// ports, and following data of the same flows, to a queue of package nfqueue. A table
// belongs to the socket that made it (NFT_TABLE_F_OWNER, Linux 5.12). The kernel
// removes it when that socket is closed, also by the death of the process. On older
// kernels it stays (Table.Owned).
//
// The numbers are those of include/uapi/linux/netfilter/nf_tables.h, unless another
// header is named.
package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Hook is a netfilter hook, enum nf_inet_hooks of netfilter.h.
type Hook uint32

// The hooks.
const (
	Prerouting Hook = 0
	Input      Hook = 1
	Output     Hook = 3
)

// Match selects SYNs by destination: a port, on one address or, with the zero Addr,
// on all addresses of both families.
type Match struct {
	Addr netip.Addr
	Port uint16
}

// Way is the expression by which a rule sends packets to a queue.
type Way string

// The ways: nftables' own expression (nft_queue), and the older target of
// iptables through nft_compat, for kernels that were built without the first.
const (
	Native Way = "queue"
	Compat Way = "target"
)

// Spec describes a table. Packets that match in one of the hooks go to the queue, and
// bypass it if no process serves the queue. The same holds for data after a matching
// SYN, identified by its source port.
type Spec struct {
	Name     string
	Hooks    []Hook
	Priority int32 // enum nf_ip_hook_priorities: -150 is before NAT's -100
	Matches  []Match
	Queue    uint16
	Way      Way
	// Unowned makes a table that stays when its process dies, as all do before Linux
	// 5.12.
	Unowned bool
}

// Table is a table in the kernel. It is for one goroutine.
type Table struct {
	conn  *netlink.Conn
	spec  Spec
	owned bool
}

// askLimit bounds a transaction. One takes half a millisecond, or several ms if the
// kernel loads a module.
const askLimit = 10 * time.Second

// Add makes the table in one transaction. fs.ErrNotExist means that the kernel does
// not know the Way.
func Add(s Spec) (*Table, error) {
	var flags uint32 = flagOwner
	if s.Unowned {
		flags = 0
	}
	t, err := add(s, flags)
	// Before Linux 5.12: unknown flags.
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		t, err = add(s, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("add the nftables table %s: %w", s.Name, err)
	}
	return t, nil
}

func add(s Spec, flags uint32) (*Table, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, err
	}
	if err := transact(c, s.messages(flags)); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &Table{conn: c, spec: s, owned: flags&flagOwner != 0}, nil
}

// Owned reports whether the kernel removes the table with this process. Other tables
// have to be removed with Delete, by Name.
func (t *Table) Owned() bool { return t.owned }

// Name is the table's name.
func (t *Table) Name() string { return t.spec.Name }

// PassNew makes SYNs bypass the queue from now on. Data of earlier flows still goes
// to the queue.
func (t *Table) PassNew() error {
	var ms []message
	for _, h := range t.spec.Hooks {
		ms = append(ms, message{delRule, 0, func(e *netlink.AttributeEncoder) error { // all rules of the chain
			e.String(1, t.spec.Name) // NFTA_RULE_TABLE
			e.String(2, h.chain())   // NFTA_RULE_CHAIN
			return nil
		}})
		for _, m := range t.spec.Matches {
			ms = append(ms, t.spec.queueing(h, m.follows()))
		}
	}
	if err := transact(t.conn, ms); err != nil {
		return fmt.Errorf("change the nftables table %s: %w", t.spec.Name, err)
	}
	return nil
}

// Remove removes the table. It is the last call.
func (t *Table) Remove() error {
	err := transact(t.conn, []message{deleteTable(t.spec.Name)})
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	if err = errors.Join(err, t.conn.Close()); err != nil {
		return fmt.Errorf("remove the nftables table %s: %w", t.spec.Name, err)
	}
	return nil
}

// Delete removes a table that a dead process has left, if it exists.
func Delete(name string) error {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("remove the nftables table %s: %w", name, err)
	}
	return (&Table{conn: c, spec: Spec{Name: name}}).Remove()
}

// message is a message of a transaction.
type message struct {
	kind  uint16 // below NFNL_SUBSYS_NFTABLES
	flags netlink.HeaderFlags
	body  func(*netlink.AttributeEncoder) error
}

const (
	subsystem  = 10   // NFNL_SUBSYS_NFTABLES, nfnetlink.h
	batchBegin = 0x10 // NFNL_MSG_BATCH_BEGIN, nfnetlink.h
	batchEnd   = 0x11

	newTable, delTable, newChain, newRule, delRule, newSet = 0, 2, 3, 6, 8, 9

	familyInet = 1 // NFPROTO_INET, netfilter.h: IPv4 and IPv6
	flagOwner  = 2 // NFT_TABLE_F_OWNER

	// flowSet has the source ports of matching SYNs.
	flowSet     = "flows"
	flowSetID   = 1 // in the transaction that makes it
	flowSetSize = 65536
	flagEval    = 0x20 // NFT_SET_EVAL: rules add to it
)

// transact sends messages that the kernel carries out atomically.
func transact(c *netlink.Conn, ms []message) error {
	batch := []netlink.Message{frame(batchBegin, netlink.Request, header(unix.AF_UNSPEC, subsystem))}
	for _, m := range ms {
		e := netlink.NewAttributeEncoder()
		e.ByteOrder = binary.BigEndian
		if err := m.body(e); err != nil {
			return err
		}
		attrs, err := e.Encode()
		if err != nil {
			return err
		}
		batch = append(batch, frame(subsystem<<8|m.kind, netlink.Request|netlink.Acknowledge|m.flags,
			append(header(familyInet, 0), attrs...)))
	}
	batch = append(batch, frame(batchEnd, netlink.Request, header(unix.AF_UNSPEC, subsystem)))
	if err := c.SetDeadline(time.Now().Add(askLimit)); err != nil {
		return err
	}
	if _, err := c.SendMessages(batch); err != nil {
		return err
	}
	for acks := 0; acks < len(ms); {
		got, err := c.Receive() // a negative answer is an error here
		if err != nil {
			return err
		}
		acks += len(got)
	}
	return nil
}

func frame(kind uint16, flags netlink.HeaderFlags, data []byte) netlink.Message {
	return netlink.Message{Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: flags}, Data: data}
}

// header is struct nfgenmsg of nfnetlink.h.
func header(family uint8, resource uint16) []byte {
	return []byte{family, 0, byte(resource >> 8), byte(resource)}
}

func deleteTable(name string) message {
	return message{delTable, 0, func(e *netlink.AttributeEncoder) error {
		e.String(1, name) // NFTA_TABLE_NAME
		return nil
	}}
}

// messages make the table, its set, a chain for each hook, and in each the rules
// for each match.
func (s Spec) messages(flags uint32) []message {
	ms := []message{{newTable, netlink.Create | netlink.Excl, func(e *netlink.AttributeEncoder) error {
		e.String(1, s.Name) // NFTA_TABLE_NAME
		e.Uint32(2, flags)  // NFTA_TABLE_FLAGS
		return nil
	}}, {newSet, netlink.Create | netlink.Excl, func(e *netlink.AttributeEncoder) error {
		e.String(1, s.Name)                                   // NFTA_SET_TABLE
		e.String(2, flowSet)                                  // NFTA_SET_NAME
		e.Uint32(3, flagEval)                                 // NFTA_SET_FLAGS
		e.Uint32(4, 13)                                       // NFTA_SET_KEY_TYPE: nft(8)'s inet_service, so that it can show the set
		e.Uint32(5, 2)                                        // NFTA_SET_KEY_LEN
		e.Uint32(10, flowSetID)                               // NFTA_SET_ID
		e.Nested(9, func(e *netlink.AttributeEncoder) error { // NFTA_SET_DESC
			e.Uint32(1, flowSetSize) // NFTA_SET_DESC_SIZE
			return nil
		})
		return nil
	}}}
	for _, h := range s.Hooks {
		ms = append(ms, message{newChain, netlink.Create, func(e *netlink.AttributeEncoder) error {
			e.String(1, s.Name)                                   // NFTA_CHAIN_TABLE
			e.String(3, h.chain())                                // NFTA_CHAIN_NAME
			e.Nested(4, func(e *netlink.AttributeEncoder) error { // NFTA_CHAIN_HOOK
				e.Uint32(1, uint32(h))          // NFTA_HOOK_HOOKNUM
				e.Uint32(2, uint32(s.Priority)) // NFTA_HOOK_PRIORITY
				return nil
			})
			e.String(7, "filter") // NFTA_CHAIN_TYPE
			return nil
		}})
		for _, m := range s.Matches {
			// A flow that does not fit into the set is queued all the same.
			ms = append(ms, s.rule(h, m.remember()), s.queueing(h, m.begins()), s.queueing(h, m.follows()))
		}
	}
	return ms
}

// queueing is a rule that sends matching packets to the queue.
func (s Spec) queueing(h Hook, fits []expr.Any) message {
	return s.rule(h, append(fits, s.Way.sendTo(s.Queue)))
}

// rule appends a rule to a chain.
func (s Spec) rule(h Hook, expressions []expr.Any) message {
	return message{newRule, netlink.Create | netlink.Append, func(e *netlink.AttributeEncoder) error {
		e.String(1, s.Name)                                   // NFTA_RULE_TABLE
		e.String(2, h.chain())                                // NFTA_RULE_CHAIN
		e.Nested(4, func(e *netlink.AttributeEncoder) error { // NFTA_RULE_EXPRESSIONS
			for _, x := range expressions {
				e.Do(netlink.Nested|1, func() ([]byte, error) { return expr.Marshal(familyInet, x) }) // NFTA_LIST_ELEM
			}
			return nil
		})
		return nil
	}}
}

func (h Hook) chain() string {
	switch h {
	case Prerouting:
		return "prerouting"
	case Input:
		return "input"
	}
	return "output"
}
