package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Steering gives datagrams of a network namespace to other UDP sockets than the kernel would
// (BPF_PROG_TYPE_SK_LOOKUP, Linux 5.9). It changes no socket that it does not steer to. It
// ends with its process, and at its deadline. Connected sockets come first as ever, and
// multicast is not steered. If several steer one port, each holds and serves the flows that are
// new to it, and leaves its old ones to those that began before it.
type Steering struct {
	state   *ebpf.Map // by the constants below
	places  *ebpf.Map // placeValue by address and port
	flows   *ebpf.Map // the flows that were seen in SteerWatch
	passing *ebpf.Map // the flows that pass
	sockets *ebpf.Map // by slot
	seen    *ebpf.Map // what the classifier of QUIC saw in this packet, by CPU
	ids     *ebpf.Map // connection ids of QUIC that servers chose: flowOld or flowNew
	peers   *ebpf.Map // of QUIC, by address: flowOld or flowNew of the last connection, and handshaking
	cookies *ebpf.Map // of these servers' sockets: flowOld or flowNew
	slots   uint32    // in use
	links   []link.Link
}

// SteerMode says where a Steering gives datagrams to.
type SteerMode uint32

// The modes. SteerWatch steers nothing and learns the flows. SteerHold gives known flows to
// the old socket of their place and others to the waiting one, SteerServe to the new one.
const (
	SteerWatch SteerMode = iota
	SteerHold
	SteerServe
)

// Place is an address with a port; an unspecified address stands for all of its family.
type Place = netip.AddrPort

// Slot is a socket of a Steering. The zero value is none.
type Slot uint32

// KernelChooses as the old socket of a place leaves the old connections of QUIC to the kernel,
// for a server with several sockets there. New servers may then have none beside them.
const KernelChooses Slot = 1 << 30

// PlaceSockets are the sockets to which datagrams to a place go. Without an old one, all
// flows are new. Without any the kernel decides.
type PlaceSockets struct{ Waiting, Old, New Slot }

const (
	maxFlows   = 1 << 16 // the least recently used one is forgotten
	maxIDs     = 1 << 18
	maxPlaces  = 256
	maxSteered = 3*maxPlaces + 1

	placeLen, flowLen      = 20, 40 // keys
	seenLen                = 16     // the last 4 bytes of the source, its port, and what follows from the id
	seenPort, seenIs       = 4, 8
	idLen                  = 24 // key: the id, up to 20 bytes, and its length
	stateUntil, stateMode  = 0, 8
	stateQUIC, stateLength = 12, 16
	maxIDBytes             = 20

	flowOld, flowNew = 1, 2

	idLengthKey = 1 // in state, beside the mode's 0
)

// NewSteering loads a steering that does nothing yet.
func NewSteering() (_ *Steering, err error) {
	s := &Steering{slots: 1}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	for _, m := range []struct {
		to   **ebpf.Map
		spec ebpf.MapSpec
	}{
		{&s.state, ebpf.MapSpec{Name: "hf_steer", Type: ebpf.Array, KeySize: 4, ValueSize: stateLength, MaxEntries: 2}},
		{&s.places, ebpf.MapSpec{Name: "hf_places", Type: ebpf.Hash, KeySize: placeLen, ValueSize: 12, MaxEntries: maxPlaces}},
		{&s.flows, ebpf.MapSpec{Name: "hf_flows", Type: ebpf.LRUHash, KeySize: flowLen, ValueSize: 4, MaxEntries: maxFlows}},
		{&s.passing, ebpf.MapSpec{Name: "hf_passing", Type: ebpf.LRUHash, KeySize: flowLen, ValueSize: 4, MaxEntries: maxPassing}},
		{&s.sockets, ebpf.MapSpec{Name: "hf_sockets", Type: ebpf.SockMap, KeySize: 4, ValueSize: 8, MaxEntries: maxSteered}},
		{&s.seen, ebpf.MapSpec{Name: "hf_seen", Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: seenLen, MaxEntries: 1}},
	} {
		if *m.to, err = ebpf.NewMap(&m.spec); err != nil {
			return nil, fmt.Errorf("make a BPF map to steer datagrams: %w", err)
		}
	}
	return s, nil
}

// Add makes a socket known, which is bound. Error: EBUSY if another program already has a use
// for it.
func (s *Steering) Add(fd int) (Slot, error) {
	if s.slots >= maxSteered {
		return 0, errors.New("too many sockets to steer datagrams to")
	}
	if err := s.sockets.Put(s.slots, uint64(fd)); err != nil {
		return 0, fmt.Errorf("steer datagrams to a socket: %w", err)
	}
	s.slots++
	return Slot(s.slots - 1), nil
}

// Steer sets the sockets of a place.
func (s *Steering) Steer(p Place, to PlaceSockets) error {
	value := make([]byte, 0, 12)
	for _, slot := range []Slot{to.Waiting, to.Old, to.New} {
		value = binary.NativeEndian.AppendUint32(value, uint32(slot))
	}
	if err := s.places.Put(placeKey(p), value); err != nil {
		return fmt.Errorf("steer the datagrams to %v: %w", p, err)
	}
	return nil
}

// Pass lets datagrams of a flow through to the server, also in SteerHold, until end is called.
// Of very many flows that pass at once, one may cease to.
func (s *Steering) Pass(from, to netip.AddrPort) (end func(), err error) {
	key := binary.NativeEndian.AppendUint32(nil, uint32(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, from.Port()))))
	source := from.Addr().As16()
	key = append(append(key, source[:]...), placeKey(to)...)
	if err := s.passing.Put(key, uint32(1)); err != nil {
		return nil, fmt.Errorf("let datagrams pass: %w", err)
	}
	return func() { _ = s.passing.Delete(key) }, nil // it may be gone
}

func placeKey(p Place) []byte {
	a := p.Addr().As16()
	return binary.NativeEndian.AppendUint32(a[:], uint32(p.Port()))
}

// Set sets the mode until the deadline, after which nothing is steered.
func (s *Steering) Set(m SteerMode, d time.Duration) error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return err
	}
	value := make([]byte, stateLength)
	binary.NativeEndian.PutUint64(value[stateUntil:], uint64(now.Nano()+int64(d)))
	binary.NativeEndian.PutUint32(value[stateMode:], uint32(m))
	quic := uint32(0)
	if s.ids != nil {
		quic = 1
	}
	binary.NativeEndian.PutUint32(value[stateQUIC:], quic)
	if err := s.state.Put(uint32(0), value); err != nil {
		return fmt.Errorf("steer datagrams: %w", err)
	}
	return nil
}

// Attach begins to steer datagrams to these ports, in the network namespace of this thread.
func (s *Steering) Attach(ports []uint16) error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "hf_steer", Type: ebpf.SkLookup, AttachType: ebpf.AttachSkLookup, License: license,
		Instructions: s.steerInstructions(ports),
	})
	if err != nil {
		return fmt.Errorf("load a BPF program that steers datagrams: %w", err)
	}
	defer p.Close() // the link keeps it
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer ns.Close()
	l, err := link.AttachNetNs(int(ns.Fd()), p)
	if errors.Is(err, unix.E2BIG) {
		return fmt.Errorf("steer datagrams: the kernel allows no more programs in this network namespace: %w", err)
	} else if err != nil {
		return fmt.Errorf("steer datagrams: %w", err)
	}
	s.links = append(s.links, l)
	return nil
}

// Close ends the steering.
func (s *Steering) Close() {
	for _, l := range s.links {
		_ = l.Close()
	}
	for _, m := range []*ebpf.Map{s.state, s.places, s.flows, s.passing, s.sockets, s.seen, s.ids, s.peers, s.cookies} {
		_ = m.Close() // a nil one needs none
	}
}

// Offsets in struct bpf_sk_lookup of include/uapi/linux/bpf.h. Addresses and the remote port
// are in network byte order.
const (
	lookupSocket, lookupFamily, lookupProtocol = 0, 8, 12
	lookupRemote4, lookupRemote6               = 16, 20
	lookupRemotePort                           = 36
	lookupLocal4, lookupLocal6                 = 40, 44
	lookupLocalPort                            = 60

	replace, noReuseport = 1 << 0, 1 << 1 // BPF_SK_LOOKUP_F_REPLACE, BPF_SK_LOOKUP_F_NO_REUSEPORT
)

// mapped is ::ffff:0:0/96 as a word in network byte order, which precedes an IPv4 address.
func mapped() int32 {
	return int32(binary.NativeEndian.Uint32([]byte{0, 0, 0xff, 0xff}))
}

// steerInstructions build the keys of the flow and of its place on the stack: the remote
// port, the remote and the local address, and the local port. The last two are the place.
func (s *Steering) steerInstructions(ports []uint16) asm.Instructions {
	const (
		flow, remote, local, port = -flowLen, -36, -placeLen, -4
		any16, anyPort, zero      = -64, -48, -68

		mine, ipv4, built, found, byFlow, old, fresh, waiting, assign, pass = "mine", "ipv4", "built", "found", "by-flow", "old", "fresh", "waiting", "assign", "pass"
	)
	ins := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, lookupProtocol, asm.Word),
		asm.JNE.Imm(asm.R2, unix.IPPROTO_UDP, pass),
		asm.LoadMem(asm.R2, asm.R6, lookupLocalPort, asm.Word),
	}
	for _, p := range ports {
		ins = append(ins, asm.JEq.Imm(asm.R2, int32(p), mine))
	}
	ins = append(ins,
		asm.Ja.Label(pass),
		asm.StoreMem(asm.R10, port, asm.R2, asm.Word).WithSymbol(mine),
		asm.StoreMem(asm.R10, anyPort, asm.R2, asm.Word),
		asm.LoadMem(asm.R2, asm.R6, lookupRemotePort, asm.Half),
		asm.StoreMem(asm.R10, flow, asm.R2, asm.Word),
		asm.StoreImm(asm.R10, any16, 0, asm.Word),
		asm.StoreImm(asm.R10, any16+4, 0, asm.Word),
		asm.StoreImm(asm.R10, any16+8, 0, asm.Word),
		asm.StoreImm(asm.R10, any16+12, 0, asm.Word),
		asm.StoreImm(asm.R10, zero, 0, asm.Word),
		asm.LoadMem(asm.R2, asm.R6, lookupFamily, asm.Word),
		asm.JEq.Imm(asm.R2, unix.AF_INET, ipv4),
	)
	for i := int16(0); i < 16; i += 4 {
		ins = append(ins,
			asm.LoadMem(asm.R2, asm.R6, lookupRemote6+i, asm.Word), asm.StoreMem(asm.R10, remote+i, asm.R2, asm.Word),
			asm.LoadMem(asm.R2, asm.R6, lookupLocal6+i, asm.Word), asm.StoreMem(asm.R10, local+i, asm.R2, asm.Word),
		)
	}
	ins = append(ins, asm.Ja.Label(built), asm.StoreImm(asm.R10, any16+8, int64(mapped()), asm.Word).WithSymbol(ipv4))
	for _, at := range []struct{ key, from int16 }{{remote, lookupRemote4}, {local, lookupLocal4}} {
		ins = append(ins,
			asm.StoreImm(asm.R10, at.key, 0, asm.Word),
			asm.StoreImm(asm.R10, at.key+4, 0, asm.Word),
			asm.StoreImm(asm.R10, at.key+8, int64(mapped()), asm.Word),
			asm.LoadMem(asm.R2, asm.R6, at.from, asm.Word),
			asm.StoreMem(asm.R10, at.key+12, asm.R2, asm.Word),
		)
	}
	ins = append(ins, lookup(s.places, local, built)...)
	ins = append(ins, asm.JNE.Imm(asm.R0, 0, found))
	ins = append(ins, lookup(s.places, any16, "")...)
	ins = append(ins,
		asm.JEq.Imm(asm.R0, 0, pass),
		asm.Mov.Reg(asm.R7, asm.R0).WithSymbol(found),
	)
	ins = append(ins, lookup(s.state, zero, "")...)
	ins = append(ins,
		asm.JEq.Imm(asm.R0, 0, pass),
		asm.Mov.Reg(asm.R8, asm.R0),
		asm.FnKtimeGetNs.Call(),
		asm.LoadMem(asm.R1, asm.R8, stateUntil, asm.DWord),
		asm.JGT.Reg(asm.R0, asm.R1, pass),
		asm.LoadMem(asm.R9, asm.R8, stateMode, asm.Word),
	)
	ins = append(ins, lookup(s.passing, flow, "")...)
	ins = append(ins,
		asm.JNE.Imm(asm.R0, 0, "new"),
		asm.LoadMem(asm.R1, asm.R8, stateQUIC, asm.Word),
		asm.JEq.Imm(asm.R1, 0, byFlow),
		asm.JEq.Imm(asm.R9, int32(SteerWatch), pass),
	)
	// QUIC: what the classifier saw, if it saw this packet
	ins = append(ins, lookup(s.seen, zero, "")...)
	ins = append(ins,
		asm.JEq.Imm(asm.R0, 0, pass),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.Word),
		asm.LoadMem(asm.R2, asm.R10, remote+12, asm.Word),
		asm.JNE.Reg(asm.R1, asm.R2, old),
		asm.LoadMem(asm.R1, asm.R0, seenPort, asm.Word),
		asm.LoadMem(asm.R2, asm.R10, flow, asm.Word),
		asm.JNE.Reg(asm.R1, asm.R2, old),
		asm.LoadMem(asm.R1, asm.R0, seenIs, asm.Word),
		asm.JEq.Imm(asm.R1, flowNew, fresh),
		asm.Ja.Label(old),
	)
	ins = append(ins, lookup(s.flows, flow, byFlow)...)
	ins = append(ins,
		asm.JNE.Imm(asm.R9, int32(SteerWatch), "known"),
		// update(flows, flow, any value, BPF_ANY)
		asm.LoadMapPtr(asm.R1, s.flows.FD()),
		asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, flow),
		asm.Mov.Reg(asm.R3, asm.R10), asm.Add.Imm(asm.R3, zero),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnMapUpdateElem.Call(),
		asm.Ja.Label(pass),
		asm.JNE.Imm(asm.R0, 0, old).WithSymbol("known"),
		// A flow that is not known is a new one, or one that an earlier steering has given to
		// a server before the old one. It has given all others to the old one.
		asm.LoadMem(asm.R1, asm.R6, lookupSocket, asm.DWord),
		asm.JEq.Imm(asm.R1, 0, fresh),
		asm.LoadMem(asm.R1, asm.R7, 4, asm.Word), // PlaceSockets.Old
		asm.JEq.Imm(asm.R1, 0, fresh),
		asm.StoreMem(asm.R10, zero, asm.R1, asm.Word),
	)
	ins = append(ins, lookup(s.sockets, zero, "")...)
	ins = append(ins,
		asm.JEq.Imm(asm.R0, 0, fresh),
		asm.Mov.Reg(asm.R8, asm.R0),
		asm.LoadMem(asm.R1, asm.R6, lookupSocket, asm.DWord),
		asm.JEq.Reg(asm.R1, asm.R8, "same"),
		asm.Mov.Reg(asm.R1, asm.R8),
		asm.FnSkRelease.Call(),
		asm.Ja.Label(pass),
		asm.Mov.Reg(asm.R1, asm.R8).WithSymbol("same"),
		asm.FnSkRelease.Call(),
		asm.Ja.Label(fresh),
		asm.LoadMem(asm.R1, asm.R6, lookupSocket, asm.DWord).WithSymbol(old), // an earlier steering has chosen
		asm.JNE.Imm(asm.R1, 0, pass),
		asm.LoadMem(asm.R1, asm.R7, 4, asm.Word), // PlaceSockets.Old
		asm.JEq.Imm(asm.R1, 0, fresh),
		asm.JEq.Imm(asm.R1, int32(KernelChooses), pass),
		asm.StoreMem(asm.R10, zero, asm.R1, asm.Word),
	)
	ins = append(ins, lookup(s.sockets, zero, "")...)
	ins = append(ins,
		asm.JNE.Imm(asm.R0, 0, assign), // else it is closed
		asm.JEq.Imm(asm.R9, int32(SteerHold), waiting).WithSymbol(fresh),
		asm.LoadMem(asm.R1, asm.R7, 8, asm.Word).WithSymbol("new"), // PlaceSockets.New
		asm.Ja.Label("slot"),
		asm.LoadMem(asm.R1, asm.R7, 0, asm.Word).WithSymbol(waiting), // PlaceSockets.Waiting
		asm.JEq.Imm(asm.R1, 0, pass).WithSymbol("slot"),
		asm.StoreMem(asm.R10, zero, asm.R1, asm.Word),
	)
	ins = append(ins, lookup(s.sockets, zero, "")...)
	return append(ins,
		asm.JEq.Imm(asm.R0, 0, pass),
		asm.Mov.Reg(asm.R7, asm.R0).WithSymbol(assign),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Reg(asm.R2, asm.R7),
		asm.Mov.Imm(asm.R3, replace|noReuseport),
		asm.FnSkAssign.Call(),
		asm.Mov.Reg(asm.R1, asm.R7),
		asm.FnSkRelease.Call(),
		asm.Mov.Imm(asm.R0, 1).WithSymbol(pass), // SK_PASS
		asm.Return(),
	)
}

// lookup calls lookup(m, stack+key).
func lookup(m *ebpf.Map, key int32, symbol string) asm.Instructions {
	first := asm.LoadMapPtr(asm.R1, m.FD())
	if symbol != "" {
		first = first.WithSymbol(symbol)
	}
	return asm.Instructions{first, asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, key), asm.FnMapLookupElem.Call()}
}
