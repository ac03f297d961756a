package vethnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// natRules is the NAT of a bridge's namespaces. It has an nftables table that
// masquerades their packets and filters forwarded ones, forwarding on the devices
// that need it, and two rules of iptables if those drop forwarded packets by default.
// All of its state is in the kernel, including what has to be undone, so that the
// next process finds it.
type natRules struct {
	table  string
	bridge string
	subnet netip.Prefix
	tables tables

	mu      sync.Mutex
	made    bool     // this process has made the table
	enabled []string // the devices that this process has enabled, in case the table is flushed
}

// The sets of the table, of names of devices.
const (
	// turnedOn has the devices on which this package has enabled forwarding, to the
	// bridge only.
	turnedOn = "turned-on"
	// uplinks has the bridges to other networks, and not those of other containers.
	uplinks = "uplinks"
)

// devices is the content of the sets.
type devices struct{ turnedOn, uplinks []string }

// ensure makes the missing parts; the first call of this process makes the table
// again. With fully it also checks devices and iptables; without it only if the table
// is gone or was made by another process.
func (w *natRules) ensure(fully bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.made && !fully {
		if exists, err := w.exists(); exists || err != nil {
			return err
		}
	}
	if err := w.make(); err != nil {
		return fmt.Errorf("set up NAT for bridge %s: %w", w.bridge, err)
	}
	w.made = true
	return nil
}

// tend makes the missing parts, and with devices also compares the rules with the host's.
func (w *natRules) tend(devices bool) error {
	if err := w.ensure(devices); err != nil || devices {
		return err
	}
	if err := w.tables.accept(w.bridge); err != nil {
		return fmt.Errorf("set up NAT for bridge %s: %w", w.bridge, err)
	}
	return nil
}

// invalidate makes the next ensure check everything.
func (w *natRules) invalidate() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.made = false
}

func (w *natRules) make() error {
	before, exists, err := w.recorded()
	if err != nil {
		return err
	}
	now, err := w.plan(slices.Concat(before.turnedOn, w.enabled))
	if err != nil {
		return err
	}
	w.enabled = now.turnedOn
	if !w.made || !exists || !slices.Equal(before.turnedOn, now.turnedOn) || !slices.Equal(before.uplinks, now.uplinks) {
		if err := w.replace(now); err != nil {
			return err
		}
	}
	// The set is written first, so that a later process knows which devices to
	// disable.
	if err := w.turnOn(now.turnedOn); err != nil {
		return err
	}
	return w.tables.accept(w.bridge)
}

// remove undoes all of it.
func (w *natRules) remove() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.made = false
	before, _, err := w.recorded()
	if err == nil {
		err = errors.Join(w.turnOff(slices.Concat(before.turnedOn, w.enabled)), w.tables.remove(w.bridge), w.delete())
	}
	w.enabled = nil
	if err != nil {
		return fmt.Errorf("remove NAT for bridge %s: %w", w.bridge, err)
	}
	return nil
}

func (w *natRules) nft() *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyIPv4, Name: w.table}
}

// exists reports whether the table exists.
func (w *natRules) exists() (bool, error) {
	c, err := nftables.New()
	if err != nil {
		return false, err
	}
	_, err = c.GetSetByName(w.nft(), uplinks)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// recorded returns the content of the table's sets, and whether the table exists.
func (w *natRules) recorded() (d devices, exists bool, err error) {
	if exists, err = w.exists(); !exists || err != nil {
		return d, false, err
	}
	c, err := nftables.New()
	if err != nil {
		return d, false, err
	}
	for name, to := range map[string]*[]string{turnedOn: &d.turnedOn, uplinks: &d.uplinks} {
		list, err := c.GetSetElements(&nftables.Set{Table: w.nft(), Name: name})
		if err != nil {
			return d, false, fmt.Errorf("read the set %s of table %s: %w", name, w.table, err)
		}
		for _, e := range list {
			*to = append(*to, unix.ByteSliceToString(e.Key))
		}
		slices.Sort(*to)
	}
	return d, true, nil
}

func (w *natRules) delete() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	c.AddTable(w.nft()) // so that deleting a missing table is no error
	c.DelTable(w.nft())
	return c.Flush()
}

// The chains of the table.
const forwardChain, natChain = "forward", "postrouting"

// replace replaces the table in one transaction.
func (w *natRules) replace(d devices) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	c.AddTable(w.nft())
	c.DelTable(w.nft())
	t := c.AddTable(w.nft())
	sets := map[string]*nftables.Set{}
	for name, list := range map[string][]string{turnedOn: d.turnedOn, uplinks: d.uplinks} {
		sets[name] = &nftables.Set{Table: t, Name: name, KeyType: nftables.TypeIFName}
		if err := c.AddSet(sets[name], elements(list)); err != nil {
			return err
		}
	}
	accept := nftables.ChainPolicyAccept
	nat := c.AddChain(&nftables.Chain{Name: natChain, Table: t, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource, Policy: &accept})
	forward := c.AddChain(&nftables.Chain{Name: forwardChain, Table: t, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: &accept})
	c.AddRule(&nftables.Rule{Table: t, Chain: nat, Exprs: slices.Concat(w.source(expr.CmpOpEq), device(expr.MetaKeyOIFNAME, expr.CmpOpNeq, w.bridge), []expr.Any{&expr.Masq{}})})
	for _, exprs := range w.passing(sets) {
		c.AddRule(&nftables.Rule{Table: t, Chain: forward, Exprs: exprs})
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("make the nftables table %s: %w", w.table, err)
	}
	return nil
}

// passing returns the rules for forwarded packets, in their order.
func (w *natRules) passing(sets map[string]*nftables.Set) [][]expr.Any {
	from, to := device(expr.MetaKeyIIFNAME, expr.CmpOpEq, w.bridge), device(expr.MetaKeyOIFNAME, expr.CmpOpEq, w.bridge)
	elsewhere := device(expr.MetaKeyOIFNAME, expr.CmpOpNeq, w.bridge)
	drop, accept := verdict(expr.VerdictDrop), verdict(expr.VerdictAccept)
	return [][]expr.Any{
		// Drop packets between namespaces that are routed by the host, which the
		// ports' isolation does not cover.
		slices.Concat(from, to, drop),
		// Drop packets that would not be masqueraded.
		slices.Concat(from, w.source(expr.CmpOpNeq), drop),
		// Accept packets to other containers only for their published ports.
		slices.Concat(from, published(), accept),
		slices.Concat(from, device(metaOIFKIND, expr.CmpOpEq, "bridge"), member(expr.MetaKeyOIFNAME, sets[uplinks], true), drop),
		slices.Concat(from, accept),
		// From other networks accept only replies.
		slices.Concat(to, replies(), accept),
		slices.Concat(to, drop),
		// Forward nothing else: the host is not a router.
		slices.Concat(member(expr.MetaKeyIIFNAME, sets[turnedOn], false), elsewhere, drop),
	}
}

// source compares the subnet of a packet's source with that of the bridge.
func (w *natRules) source(op expr.CmpOp) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4}, // the source in an IPv4 header, RFC 791
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: net.CIDRMask(w.subnet.Bits(), 32), Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: 1, Data: w.subnet.Addr().AsSlice()},
	}
}
