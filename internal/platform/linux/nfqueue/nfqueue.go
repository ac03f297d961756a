// Package nfqueue serves a netfilter queue: packets that a rule sends to it wait in
// the kernel for a verdict (libnetfilter_queue's protocol,
// include/uapi/linux/netfilter/nfnetlink_queue.h).
package nfqueue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Queue is a queue that this process serves. Receive is for one goroutine; the
// rest may be called from any.
type Queue struct {
	conn *netlink.Conn
	num  uint16
}

// Packet is a packet that waits for a verdict.
type Packet struct {
	ID       uint32
	Loopback bool   // it arrived on lo, or was not received on an interface
	Data     []byte // from its IP header on, at most CopyRange bytes
}

const (
	// CopyRange is the number of bytes of a packet that are copied: its headers.
	CopyRange = 128
	// MaxLen is the number of packets that may wait. The kernel drops further ones.
	MaxLen = 65536

	// receiveBuffer is the buffer of unread packets: about 1 KiB of kernel memory for
	// each.
	receiveBuffer = 32 << 20
	// tries is the number of queue numbers that Open tries.
	tries = 64

	subsystem = 3 // NFNL_SUBSYS_QUEUE, nfnetlink.h

	msgPacket, msgVerdict, msgConfig, msgBatch = 0, 1, 2, 3 // NFQNL_MSG_*

	attrHeader, attrVerdict, attrInDev, attrPayload = 1, 2, 5, 10 // NFQA_*

	cfgCommand, cfgParams, cfgMaxLen, cfgMask, cfgFlags = 1, 2, 3, 4, 5 // NFQA_CFG_*

	commandBind, commandUnbind = 1, 2 // NFQNL_CFG_CMD_*
	copyPacket                 = 2    // NFQNL_COPY_PACKET
	flagFailOpen, flagGSO      = 1, 4 // NFQA_CFG_F_*

	verdictDrop, verdictAccept = 0, 1 // NF_DROP, NF_ACCEPT of netfilter.h

	loopbackIndex = 1 // of lo, in every network namespace

	askLimit = 5 * time.Second
)

// Open takes the first free queue from number first on. EPERM means that another
// process has a queue.
func Open(first uint16) (*Queue, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open a netfilter queue: %w", err)
	}
	if err := c.SetReadBuffer(receiveBuffer); err != nil {
		return nil, errors.Join(fmt.Errorf("open a netfilter queue: %w", err), c.Close())
	}
	// With a full buffer packets are lost; the socket stays usable.
	if err := c.SetOption(netlink.NoENOBUFS, true); err != nil {
		return nil, errors.Join(fmt.Errorf("open a netfilter queue: %w", err), c.Close())
	}
	for i := range uint16(tries) {
		q := &Queue{conn: c, num: first + i}
		if err = q.bind(); err == nil {
			return q, nil
		} else if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EBUSY) {
			break
		}
	}
	return nil, errors.Join(fmt.Errorf("open a netfilter queue: %w", err), c.Close())
}

// Num is the queue's number, for the rule.
func (q *Queue) Num() uint16 { return q.num }

// bind takes and configures the queue in one message: between two messages the kernel
// would drop packets.
func (q *Queue) bind() error {
	e := encoder()
	e.Bytes(cfgCommand, command(commandBind))
	// struct nfqnl_msg_config_params, packed: be32 and a byte.
	e.Bytes(cfgParams, append(binary.BigEndian.AppendUint32(nil, CopyRange), copyPacket))
	e.Uint32(cfgMaxLen, MaxLen)
	e.Uint32(cfgMask, flagGSO) // large packets need not be segmented: their payload is not read
	e.Uint32(cfgFlags, flagGSO)
	m, err := q.message(msgConfig, netlink.Request|netlink.Acknowledge, e)
	if err != nil {
		return err
	}
	if err := q.conn.SetDeadline(time.Now().Add(askLimit)); err != nil {
		return err
	}
	if _, err := q.conn.Execute(m); err != nil {
		return err
	}
	return q.conn.SetDeadline(time.Time{})
}

// command is struct nfqnl_msg_config_cmd.
func command(c byte) []byte { return []byte{c, 0, 0, 0} }

// Receive waits for packets. It ignores the kernel's errors for earlier verdicts,
// when a packet no longer exists. os.ErrClosed after Close.
func (q *Queue) Receive() ([]Packet, error) {
	msgs, err := q.conn.Receive()
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("receive from netfilter queue %d: %w", q.num, err)
	}
	var ps []Packet
	for _, m := range msgs {
		if m.Header.Type != subsystem<<8|msgPacket || len(m.Data) < 4 {
			continue
		}
		p, err := parse(m.Data[4:])
		if err != nil {
			return ps, fmt.Errorf("receive from netfilter queue %d: %w", q.num, err)
		}
		ps = append(ps, p)
	}
	return ps, nil
}

func parse(b []byte) (Packet, error) {
	p := Packet{Loopback: true}
	d, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return p, err
	}
	d.ByteOrder = binary.BigEndian
	for d.Next() {
		switch d.Type() {
		case attrHeader: // struct nfqnl_msg_packet_hdr begins with the id
			if h := d.Bytes(); len(h) >= 4 {
				p.ID = binary.BigEndian.Uint32(h)
			}
		case attrInDev:
			p.Loopback = d.Uint32() == loopbackIndex
		case attrPayload:
			p.Data = d.Bytes()
		}
	}
	return p, d.Err()
}

// Accept accepts packets, in the order given.
func (q *Queue) Accept(ids ...uint32) error { return q.verdict(verdictAccept, ids) }

// Drop drops packets.
func (q *Queue) Drop(ids ...uint32) error { return q.verdict(verdictDrop, ids) }

func (q *Queue) verdict(verdict uint32, ids []uint32) error {
	for _, id := range ids {
		if err := q.send(msgVerdict, verdictOn(verdict, id)); err != nil {
			return err
		}
	}
	return nil
}

// verdictOn is struct nfqnl_msg_verdict_hdr in its attribute.
func verdictOn(verdict, id uint32) *netlink.AttributeEncoder {
	e := encoder()
	e.Bytes(attrVerdict, binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, verdict), id))
	return e
}

// OpenUp accepts all packets from now on, waiting ones first. New packets find the
// queue full and pass (fail open); then one verdict accepts all packets in it. last
// is an id that was received. Closing a queue without OpenUp drops the waiting
// packets.
func (q *Queue) OpenUp(last uint32) error {
	e := encoder()
	e.Uint32(cfgMask, flagFailOpen)
	e.Uint32(cfgFlags, flagFailOpen)
	e.Uint32(cfgMaxLen, 0)
	if err := q.send(msgConfig, e); err != nil {
		return err
	}
	// Ids are compared around their wrap (nfq_id_after of the kernel).
	return q.send(msgBatch, verdictOn(verdictAccept, last+1<<30))
}

// Close releases the queue; a blocked Receive returns.
func (q *Queue) Close() error {
	e := encoder()
	e.Bytes(cfgCommand, command(commandUnbind))
	err := errors.Join(q.send(msgConfig, e), q.conn.Close())
	if err != nil {
		return fmt.Errorf("close netfilter queue %d: %w", q.num, err)
	}
	return nil
}

// send sends a message, which the kernel answers only on failure. The kernel has
// carried it out when send returns.
func (q *Queue) send(kind uint16, e *netlink.AttributeEncoder) error {
	m, err := q.message(kind, netlink.Request, e)
	if err == nil {
		_, err = q.conn.Send(m)
	}
	if err != nil {
		return fmt.Errorf("send to netfilter queue %d: %w", q.num, err)
	}
	return nil
}

func (q *Queue) message(kind uint16, flags netlink.HeaderFlags, e *netlink.AttributeEncoder) (netlink.Message, error) {
	attrs, err := e.Encode()
	if err != nil {
		return netlink.Message{}, err
	}
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(subsystem<<8 | kind), Flags: flags},
		// struct nfgenmsg of nfnetlink.h, with the queue as the resource.
		Data: append([]byte{unix.AF_UNSPEC, 0, byte(q.num >> 8), byte(q.num)}, attrs...),
	}, nil
}

func encoder() *netlink.AttributeEncoder {
	e := netlink.NewAttributeEncoder()
	e.ByteOrder = binary.BigEndian
	return e
}
