package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// quicLicense lets a program call functions of the kernel, which requires it.
const quicLicense = "Dual MIT/GPL"

// ByConnection makes the steering tell flows apart by the connection ids of QUIC (RFC 8999,
// RFC 9000) in place of their addresses. Servers choose these ids and send them in the long
// headers of their handshakes, where a program in the cgroup at path, a directory of cgroup2,
// learns them. An id that is not known is that of the last connection from the same address.
// Otherwise it belongs to an old connection, unless its packet begins one.
// Call it before Attach. It needs Linux 6.4.
func (s *Steering) ByConnection(path string, ports []uint16) (err error) {
	if s.ids, err = ebpf.NewMap(&ebpf.MapSpec{Name: "hf_ids", Type: ebpf.LRUHash, KeySize: idLen, ValueSize: 4, MaxEntries: maxIDs}); err != nil {
		return fmt.Errorf("make a BPF map of connection ids: %w", err)
	}
	if s.peers, err = ebpf.NewMap(&ebpf.MapSpec{Name: "hf_peers", Type: ebpf.LRUHash, KeySize: peerLen, ValueSize: 4, MaxEntries: maxFlows}); err != nil {
		return fmt.Errorf("make a BPF map of peers: %w", err)
	}
	if s.cookies, err = ebpf.NewMap(&ebpf.MapSpec{Name: "hf_cookies", Type: ebpf.Hash, KeySize: 8, ValueSize: 4, MaxEntries: maxSteered}); err != nil {
		return fmt.Errorf("make a BPF map of servers' sockets: %w", err)
	}
	learn, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "hf_learn", Type: ebpf.CGroupSKB, AttachType: ebpf.AttachCGroupInetEgress, License: license,
		Instructions: s.learnInstructions(),
	})
	if err != nil {
		return fmt.Errorf("load a BPF program that learns connection ids: %w", err)
	}
	defer learn.Close()
	l, err := link.AttachCgroup(link.CgroupOptions{Path: path, Attach: ebpf.AttachCGroupInetEgress, Program: learn})
	if err != nil {
		return fmt.Errorf("learn connection ids in %s: %w", path, err)
	}
	s.links = append(s.links, l)
	read, err := kernelFunction("bpf_dynptr_from_skb")
	if err != nil {
		return err
	}
	for _, family := range []link.NetfilterProtocolFamily{link.NetfilterProtoIPv4, link.NetfilterProtoIPv6} {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Name: "hf_classify", Type: ebpf.Netfilter, AttachType: ebpf.AttachNetfilter, License: quicLicense,
			Instructions: s.classifyInstructions(read, ports, family == link.NetfilterProtoIPv6),
		})
		if err != nil {
			return fmt.Errorf("load a BPF program that reads connection ids: %w", err)
		}
		l, err := classify(p, family)
		p.Close()
		if err != nil {
			return fmt.Errorf("read connection ids: %w", err)
		}
		s.links = append(s.links, l)
	}
	return nil
}

// classify attaches p after all rules of iptables and nftables with usual priorities. No two
// programs may have the same priority.
func classify(p *ebpf.Program, family link.NetfilterProtocolFamily) (link.Link, error) {
	const first, most = 1 << 20, 128
	for priority := int32(first); ; priority++ {
		l, err := link.AttachNetfilter(link.NetfilterOptions{Program: p, ProtocolFamily: family, Hook: link.NetfilterInetLocalIn, Priority: priority})
		if !errors.Is(err, unix.EBUSY) || priority == first+most {
			return l, err
		}
	}
}

// Server says whose socket has a cookie: the old server's or the new one's.
func (s *Steering) Server(cookie uint64, isNew bool) error {
	is := uint32(flowOld)
	if isNew {
		is = flowNew
	}
	if err := s.cookies.Put(cookie, is); err != nil {
		return fmt.Errorf("learn the connection ids of a server: %w", err)
	}
	return nil
}

// kernelFunction returns the BTF id of a function that programs may call.
func kernelFunction(name string) (btf.TypeID, error) {
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		return 0, fmt.Errorf("read the kernel's types: %w", err)
	}
	var fn *btf.Func
	if err := spec.TypeByName(name, &fn); err != nil {
		return 0, fmt.Errorf("the kernel has no function %s: %w", name, err)
	}
	id, err := spec.TypeID(fn)
	if err != nil {
		return 0, fmt.Errorf("the kernel's function %s: %w", name, err)
	}
	return id, nil
}

// Long headers (RFC 8999, section 5.1): the flags, the version, the length of the destination
// id and the id, the length of the source id and the id.
const (
	longHeader  = 0x80
	lengthAt    = 5
	udpHeader   = 8
	versionTwo  = 0x6b3343cf // RFC 9369, section 3.2: other numbers of types
	typeShift   = 4          // of the flags, RFC 9000, section 17.2
	typeMask    = 3
	handshake   = 2
	handshakeV2 = 3

	// handshaking is set in the value of a peer until it sends a short header, which it does
	// when its handshake is complete.
	handshaking = 4

	// peerLen is the length of a peer: its address, its port, and that of the server.
	peerLen = 20
)

// Handshakes counts the handshakes with old servers that are not complete, of those that were
// seen.
func (s *Steering) Handshakes() (n int) {
	if s.peers == nil {
		return 0
	}
	var of [peerLen]byte
	var is uint32
	for all := s.peers.Iterate(); all.Next(&of, &is); {
		if is == flowOld|handshaking {
			n++
		}
	}
	return n
}

// learnInstructions look at each packet that a process sends. Of long headers of known
// servers' sockets they note the source id, and that the peer is in a handshake: its own
// packets may all have come before, and the next one may be late.
func (s *Steering) learnInstructions() asm.Instructions {
	const (
		cookie, id, length, head, peer, peerPorts = -8, -32, -12, -40, -64, -48

		ipv6, udp, out = "ipv6", "udp", "out"
	)
	loadTo := func(to, at, n int32) asm.Instructions { // load_bytes(ctx, R7 + at, stack+to, n)
		return asm.Instructions{
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.Mov.Reg(asm.R2, asm.R7), asm.Add.Imm(asm.R2, at),
			asm.Mov.Reg(asm.R3, asm.R10), asm.Add.Imm(asm.R3, to),
			asm.Mov.Imm(asm.R4, n),
			asm.FnSkbLoadBytes.Call(),
			asm.JNE.Imm(asm.R0, 0, out),
		}
	}
	load := func(at, n int32) asm.Instructions { return loadTo(head, at, n) }
	ins := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.FnGetSocketCookie.Call(),
		asm.StoreMem(asm.R10, cookie, asm.R0, asm.DWord),
	}
	ins = append(ins, lookup(s.cookies, cookie, "")...)
	ins = append(ins,
		asm.JEq.Imm(asm.R0, 0, out),
		asm.LoadMem(asm.R9, asm.R0, 0, asm.Word),
		asm.Mov.Imm(asm.R1, 0),
		asm.StoreMem(asm.R10, id, asm.R1, asm.DWord),
		asm.StoreMem(asm.R10, id+8, asm.R1, asm.DWord),
		asm.StoreMem(asm.R10, id+16, asm.R1, asm.DWord),
		asm.StoreMem(asm.R10, peer, asm.R1, asm.DWord),
		asm.StoreMem(asm.R10, peer+8, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R7, 0),
	)
	ins = append(ins, load(0, 1)...)
	ins = append(ins,
		asm.LoadMem(asm.R8, asm.R10, head, asm.Byte),
		asm.Mov.Reg(asm.R1, asm.R8),
		asm.RSh.Imm(asm.R1, 4),
		asm.JEq.Imm(asm.R1, 6, ipv6),
		asm.And.Imm(asm.R8, 15),
		asm.LSh.Imm(asm.R8, 2),
	)
	ins = append(ins, loadTo(peer, 16, 4)...) // the destination, RFC 791
	ins = append(ins, asm.Mov.Reg(asm.R7, asm.R8), asm.Ja.Label(udp))
	ins = append(ins, symbol(ipv6, loadTo(peer, 24, 16))...) // RFC 8200
	ins = append(ins, asm.Mov.Imm(asm.R7, 40))               // with extensions the id is not learned
	ins = append(ins, symbol(udp, loadTo(peerPorts, 0, 4))...)
	ins = append(ins,
		asm.LoadMem(asm.R1, asm.R10, peerPorts, asm.Word), // the peer's port comes first in its key
		asm.Mov.Reg(asm.R2, asm.R1),
		asm.LSh.Imm(asm.R1, 16),
		asm.RSh.Imm(asm.R2, 16),
		asm.Or.Reg(asm.R1, asm.R2),
		asm.StoreMem(asm.R10, peerPorts, asm.R1, asm.Word),
	)
	ins = append(ins, load(udpHeader, 6)...) // flags, version, length of the destination id
	ins = append(ins,
		asm.LoadMem(asm.R1, asm.R10, head, asm.Byte),
		asm.JLT.Imm(asm.R1, longHeader, out),
		asm.LoadMem(asm.R1, asm.R10, head+1, asm.Byte), // the version
		asm.LoadMem(asm.R2, asm.R10, head+2, asm.Byte),
		asm.Or.Reg(asm.R1, asm.R2),
		asm.LoadMem(asm.R2, asm.R10, head+3, asm.Byte),
		asm.Or.Reg(asm.R1, asm.R2),
		asm.LoadMem(asm.R2, asm.R10, head+4, asm.Byte),
		asm.Or.Reg(asm.R1, asm.R2),
		asm.JEq.Imm(asm.R1, 0, out), // of version negotiation
		asm.Mov.Reg(asm.R1, asm.R9),
		asm.Or.Imm(asm.R1, handshaking),
		asm.StoreMem(asm.R10, id, asm.R1, asm.Word), // which is not in use yet
		asm.LoadMapPtr(asm.R1, s.peers.FD()),
		asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, peer),
		asm.Mov.Reg(asm.R3, asm.R10), asm.Add.Imm(asm.R3, id),
		asm.Mov.Imm(asm.R4, unix.BPF_NOEXIST), // the peer's own packets tell more
		asm.FnMapUpdateElem.Call(),
		asm.StoreImm(asm.R10, id, 0, asm.Word),
		asm.LoadMem(asm.R1, asm.R10, head+lengthAt, asm.Byte),
		asm.JGT.Imm(asm.R1, maxIDBytes, out),
		asm.Add.Reg(asm.R7, asm.R1),
	)
	ins = append(ins, load(udpHeader+lengthAt+1, 1)...)
	ins = append(ins,
		asm.LoadMem(asm.R8, asm.R10, head, asm.Byte),
		asm.JEq.Imm(asm.R8, 0, out),
		asm.JGT.Imm(asm.R8, maxIDBytes, out),
		asm.StoreMem(asm.R10, length, asm.R8, asm.Byte),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Reg(asm.R2, asm.R7), asm.Add.Imm(asm.R2, udpHeader+lengthAt+2),
		asm.Mov.Reg(asm.R3, asm.R10), asm.Add.Imm(asm.R3, id),
		asm.Mov.Reg(asm.R4, asm.R8),
		asm.FnSkbLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, out),
		asm.StoreMem(asm.R10, head, asm.R9, asm.Word),
		asm.LoadMapPtr(asm.R1, s.ids.FD()),
		asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, id),
		asm.Mov.Reg(asm.R3, asm.R10), asm.Add.Imm(asm.R3, head),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnMapUpdateElem.Call(),
		// a server's ids have one length, which short headers do not tell
		asm.StoreImm(asm.R10, head, idLengthKey, asm.Word),
	)
	ins = append(ins, lookup(s.state, head, "")...)
	return append(ins,
		asm.JEq.Imm(asm.R0, 0, out),
		asm.StoreMem(asm.R0, 0, asm.R8, asm.Word),
		asm.Mov.Imm(asm.R0, 1).WithSymbol(out), // allow
		asm.Return(),
	)
}

// classifyInstructions look at each packet for this host before its socket is looked up, and
// note for the program that chooses the socket whose connection it belongs to.
func (s *Steering) classifyInstructions(read btf.TypeID, ports []uint16, ipv6 bool) asm.Instructions {
	const (
		dynptr, is, head, id, length, seenKey = -16, -24, -32, -56, -36, -60 // on the stack
		peerValue, peer, peerPorts            = -64, -64 - peerLen, -68

		mine, long, byID, unknown, learnOld, learn, peerIs, note, out = "mine", "long", "by-id", "unknown", "learn-old", "learn", "peer-is", "note", "out"
	)
	// dynptr_read(stack+to, n, dynptr, R7 + at, 0)
	load := func(to int32, at, n int32, fails string) asm.Instructions {
		return asm.Instructions{
			asm.Mov.Reg(asm.R1, asm.R10), asm.Add.Imm(asm.R1, to),
			asm.Mov.Imm(asm.R2, n),
			asm.Mov.Reg(asm.R3, asm.R10), asm.Add.Imm(asm.R3, dynptr),
			asm.Mov.Reg(asm.R4, asm.R7), asm.Add.Imm(asm.R4, at),
			asm.Mov.Imm(asm.R5, 0),
			asm.FnDynptrRead.Call(),
			asm.JNE.Imm(asm.R0, 0, fails),
		}
	}
	protocol, source, sourceLen := int32(9), int32(12), int32(4) // of RFC 791, and of RFC 8200
	if ipv6 {
		protocol, source, sourceLen = 6, 8, 16
	}
	ins := asm.Instructions{
		asm.LoadMem(asm.R1, asm.R1, 8, asm.DWord), // bpf_nf_ctx.skb
		asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Reg(asm.R3, asm.R10), asm.Add.Imm(asm.R3, dynptr),
		asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), Src: asm.PseudoKfuncCall, Constant: int64(read)},
		asm.JNE.Imm(asm.R0, 0, out),
		asm.Mov.Imm(asm.R7, 0),
	}
	for at := int16(0); at < peerLen; at += 4 {
		ins = append(ins, asm.StoreImm(asm.R10, peer+at, 0, asm.Word))
	}
	ins = append(ins, load(head, protocol, 1, out)...)
	ins = append(ins,
		asm.LoadMem(asm.R1, asm.R10, head, asm.Byte),
		asm.JNE.Imm(asm.R1, unix.IPPROTO_UDP, out),
	)
	ins = append(ins, load(peer, source, sourceLen, out)...)
	ins = append(ins, asm.LoadMem(asm.R8, asm.R10, peer+int16(sourceLen)-4, asm.Word)) // the end of the source
	if ipv6 {
		ins = append(ins, asm.Mov.Imm(asm.R7, 40))
	} else {
		ins = append(ins, load(head, 0, 1, out)...)
		ins = append(ins,
			asm.LoadMem(asm.R7, asm.R10, head, asm.Byte),
			asm.And.Imm(asm.R7, 15),
			asm.LSh.Imm(asm.R7, 2),
		)
	}
	ins = append(ins, load(head, 0, 4, out)...)
	ins = append(ins,
		asm.LoadMem(asm.R1, asm.R10, head, asm.Word),
		asm.StoreMem(asm.R10, peerPorts, asm.R1, asm.Word),
		asm.LoadMem(asm.R9, asm.R10, head, asm.Half), // the source port, in network byte order
		asm.LoadMem(asm.R1, asm.R10, head+2, asm.Half),
		asm.HostTo(asm.BE, asm.R1, asm.Half),
	)
	for _, p := range ports {
		ins = append(ins, asm.JEq.Imm(asm.R1, int32(p), mine))
	}
	ins = append(ins,
		asm.Ja.Label(out),
		asm.Mov.Imm(asm.R1, 0).WithSymbol(mine),
		asm.StoreMem(asm.R10, id, asm.R1, asm.DWord),
		asm.StoreMem(asm.R10, id+8, asm.R1, asm.DWord),
		asm.StoreMem(asm.R10, id+16, asm.R1, asm.DWord),
		asm.StoreImm(asm.R10, seenKey, 0, asm.Word),
		asm.StoreImm(asm.R10, is, flowOld, asm.Word), // for a packet with an unknown id
	)
	ins = append(ins, load(head, udpHeader, 6, note)...)
	ins = append(ins,
		asm.LoadMem(asm.R1, asm.R10, head, asm.Byte),
		asm.JGE.Imm(asm.R1, longHeader, long),
	)
	// a short header has the id behind the flags
	ins = append(ins, asm.StoreImm(asm.R10, head, idLengthKey, asm.Word))
	ins = append(ins, lookup(s.state, head, "")...)
	ins = append(ins,
		asm.JEq.Imm(asm.R0, 0, note),
		asm.LoadMem(asm.R2, asm.R0, 0, asm.Word),
		asm.Add.Imm(asm.R7, udpHeader+1),
		asm.Ja.Label(byID),
	)
	ins = append(ins,
		asm.RSh.Imm(asm.R1, typeShift).WithSymbol(long),
		asm.And.Imm(asm.R1, typeMask),
		asm.LoadMem(asm.R2, asm.R10, head+1, asm.Byte),
		asm.LoadMem(asm.R3, asm.R10, head+2, asm.Byte),
		asm.LSh.Imm(asm.R2, 8), asm.Or.Reg(asm.R2, asm.R3),
		asm.Mov.Imm(asm.R4, handshake),
		asm.JNE.Imm(asm.R2, versionTwo>>16, "version"),
		asm.Mov.Imm(asm.R4, handshakeV2),
		asm.JEq.Reg(asm.R1, asm.R4, "type").WithSymbol("version"),
		asm.StoreImm(asm.R10, is, flowNew, asm.Word), // it may begin a connection
		asm.LoadMem(asm.R2, asm.R10, head+lengthAt, asm.Byte).WithSymbol("type"),
		asm.Add.Imm(asm.R7, udpHeader+lengthAt+1),
		asm.JEq.Imm(asm.R2, 0, unknown).WithSymbol(byID),
		asm.JGT.Imm(asm.R2, maxIDBytes, note),
		asm.StoreMem(asm.R10, length, asm.R2, asm.Byte),
		asm.Mov.Reg(asm.R1, asm.R10), asm.Add.Imm(asm.R1, id),
		asm.Mov.Reg(asm.R3, asm.R10), asm.Add.Imm(asm.R3, dynptr),
		asm.Mov.Reg(asm.R4, asm.R7),
		asm.Mov.Imm(asm.R5, 0),
		asm.FnDynptrRead.Call(),
		asm.JNE.Imm(asm.R0, 0, note),
	)
	ins = append(ins, lookup(s.ids, id, "")...)
	ins = append(ins,
		asm.JEq.Imm(asm.R0, 0, unknown),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.Word),
		asm.StoreMem(asm.R10, is, asm.R1, asm.Word),
		asm.Ja.Label(peerIs),
	)
	ins = append(ins, lookup(s.state, seenKey, unknown)...)
	ins = append(ins,
		asm.JEq.Imm(asm.R0, 0, note),
		asm.LoadMem(asm.R1, asm.R0, stateMode, asm.Word),
		asm.JEq.Imm(asm.R1, int32(SteerWatch), learnOld),
		asm.Mov.Reg(asm.R7, asm.R1),
	)
	// Clients also use ids that the server has sent in secret, some as soon as they have its
	// first flight. Then their address is known; from then on, so is the id.
	ins = append(ins, lookup(s.peers, peer, "")...)
	ins = append(ins,
		asm.JEq.Imm(asm.R0, 0, peerIs),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.Word),
		asm.LoadMem(asm.R2, asm.R10, is, asm.Word),
		asm.JEq.Imm(asm.R2, flowOld, "same-peer"),
		// what may begin a connection belongs to a handshake that is not complete
		asm.JNE.Imm(asm.R7, int32(SteerHold), peerIs),
		asm.JEq.Imm(asm.R1, flowOld|handshaking, learnOld),
		asm.Ja.Label(peerIs),
		asm.And.Imm(asm.R1, flowOld|flowNew).WithSymbol("same-peer"),
		asm.StoreMem(asm.R10, is, asm.R1, asm.Word),
		asm.JEq.Imm(asm.R1, flowOld, peerIs),
		asm.Ja.Label(learn),
		// before the hold, all are old; a first flight can have several packets with one id
		asm.StoreImm(asm.R10, is, flowOld, asm.Word).WithSymbol(learnOld),
		asm.LoadMem(asm.R1, asm.R10, length, asm.Byte).WithSymbol(learn),
		asm.JEq.Imm(asm.R1, 0, peerIs), // it is not known how long the id is
		asm.LoadMapPtr(asm.R1, s.ids.FD()),
		asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, id),
		asm.Mov.Reg(asm.R3, asm.R10), asm.Add.Imm(asm.R3, is),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnMapUpdateElem.Call(),
		asm.LoadMem(asm.R1, asm.R10, is, asm.Word).WithSymbol(peerIs),
		asm.LoadMem(asm.R2, asm.R10, head, asm.Byte),
		asm.JLT.Imm(asm.R2, longHeader, "established"),
		asm.Or.Imm(asm.R1, handshaking),
		asm.StoreMem(asm.R10, peerValue, asm.R1, asm.Word).WithSymbol("established"),
		asm.LoadMapPtr(asm.R1, s.peers.FD()),
		asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, peer),
		asm.Mov.Reg(asm.R3, asm.R10), asm.Add.Imm(asm.R3, peerValue),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnMapUpdateElem.Call(),
	)
	ins = append(ins, lookup(s.seen, seenKey, note)...)
	return append(ins,
		asm.JEq.Imm(asm.R0, 0, out),
		asm.StoreMem(asm.R0, 0, asm.R8, asm.Word),
		asm.StoreMem(asm.R0, seenPort, asm.R9, asm.Word),
		asm.LoadMem(asm.R1, asm.R10, is, asm.Word),
		asm.StoreMem(asm.R0, seenIs, asm.R1, asm.Word),
		asm.Mov.Imm(asm.R0, 1).WithSymbol(out), // NF_ACCEPT
		asm.Return(),
	)
}

// symbol labels the first instruction.
func symbol(name string, ins asm.Instructions) asm.Instructions {
	ins[0] = ins[0].WithSymbol(name)
	return ins
}
