// Package bpf has the two small BPF programs that move a listening socket's clients
// to another socket. It assembles them from instructions, so it needs no compiler and
// no BTF.
//
// Programs and maps live as long as their file descriptors, and end with the process.
// A program that is attached to a group of sockets lives as long as a socket of the
// group.
package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// license need not be GPL: the helpers in use do not require it.
const license = "MIT"

// Selector steers the new connections of a group of listening sockets (SO_REUSEPORT,
// socket(7)) to one of them, and also the unaccepted connections of a closing socket
// (BPF_SK_REUSEPORT_SELECT_OR_MIGRATE, Linux 5.14). Without a choice the kernel
// distributes them over the group as usual. Connections from single addresses can be
// steered to another socket of the group (Pass).
type Selector struct {
	choice  *ebpf.Map // of sockets, by slot
	passing *ebpf.Map // the sources that go to passSlot
	program *ebpf.Program
}

// Slots of the map choice.
const (
	chosenSlot = 0
	passSlot   = 1
)

// maxPassing limits the sources that pass at once.
const maxPassing = 64

// NewSelector loads a selector without a choice.
func NewSelector() (*Selector, error) {
	s := &Selector{}
	var err error
	if s.choice, err = ebpf.NewMap(&ebpf.MapSpec{
		Name: "hf_choice", Type: ebpf.ReusePortSockArray, KeySize: 4, ValueSize: 8, MaxEntries: 2,
	}); err != nil {
		return nil, fmt.Errorf("make a BPF map of sockets: %w", err)
	}
	if s.passing, err = ebpf.NewMap(&ebpf.MapSpec{
		Name: "hf_passing", Type: ebpf.Hash, KeySize: sourceLen, ValueSize: 4, MaxEntries: maxPassing,
	}); err != nil {
		s.Close()
		return nil, fmt.Errorf("make a BPF map of sources: %w", err)
	}
	if s.program, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "hf_select", Type: ebpf.SkReuseport, AttachType: ebpf.AttachSkReuseportSelectOrMigrate, License: license,
		Instructions: selectInstructions(s.choice.FD(), s.passing.FD()),
	}); err != nil {
		s.Close()
		return nil, fmt.Errorf("load a BPF program that steers connections: %w", err)
	}
	return s, nil
}

const (
	// mdProtocol is the offset of eth_protocol in struct sk_reuseport_md, and
	// fromNetwork is BPF_HDR_START_NET (include/uapi/linux/bpf.h).
	mdProtocol  = 20
	fromNetwork = 1
	// lastOfIPv4 and lastOfIPv6 are the offsets of the last 4 bytes of the source
	// address in an IP header (RFC 791, RFC 8200).
	lastOfIPv4, lastOfIPv6 = 12, 20
	// sourceLen is the length of a source: the last 4 bytes of its address, its
	// port, both as in the packet, and 2 bytes of zeros.
	sourceLen = 8
)

// selectInstructions select the socket of passSlot for a source that passes, else that of
// chosenSlot. A connection that migrates may come without a packet, and never passes.
func selectInstructions(choice, passing int) asm.Instructions {
	const read, held = "read", "held"
	ipv4 := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_IP))
	ins := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.Mov.Imm(asm.R2, 0),
		asm.StoreMem(asm.R10, -sourceLen, asm.R2, asm.DWord),
		asm.Mov.Imm(asm.R2, lastOfIPv4),
		asm.LoadMem(asm.R3, asm.R6, mdProtocol, asm.Word),
		asm.JEq.Imm(asm.R3, int32(ipv4), read),
		asm.Mov.Imm(asm.R2, lastOfIPv6),
		// load_bytes_relative(ctx, offset, source, 4, fromNetwork)
		asm.Mov.Reg(asm.R1, asm.R6).WithSymbol(read),
		asm.Mov.Reg(asm.R3, asm.R10),
		asm.Add.Imm(asm.R3, -sourceLen),
		asm.Mov.Imm(asm.R4, 4),
		asm.Mov.Imm(asm.R5, fromNetwork),
		asm.FnSkbLoadBytesRelative.Call(),
		asm.JNE.Imm(asm.R0, 0, held),
		// load_bytes(ctx, 0, source+4, 2): the TCP header begins with the port
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Reg(asm.R3, asm.R10),
		asm.Add.Imm(asm.R3, -sourceLen+4),
		asm.Mov.Imm(asm.R4, 2),
		asm.FnSkbLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, held),
		// lookup(passing, source)
		asm.LoadMapPtr(asm.R1, passing),
		asm.Mov.Reg(asm.R2, asm.R10),
		asm.Add.Imm(asm.R2, -sourceLen),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, held),
	}
	ins = append(ins, selectSlot(choice, passSlot, "")...)
	ins = append(ins, asm.JEq.Imm(asm.R0, 0, "out"))
	ins = append(ins, selectSlot(choice, chosenSlot, held)...)
	return append(ins,
		asm.Mov.Imm(asm.R0, 1).WithSymbol("out"), // SK_PASS
		asm.Return(),
	)
}

// selectSlot calls select(ctx, choice, &slot, 0). On failure there is no choice.
func selectSlot(choice int, slot int64, symbol string) asm.Instructions {
	first := asm.StoreImm(asm.R10, -sourceLen-4, slot, asm.Word)
	if symbol != "" {
		first = first.WithSymbol(symbol)
	}
	return asm.Instructions{
		first,
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.LoadMapPtr(asm.R2, choice),
		asm.Mov.Reg(asm.R3, asm.R10),
		asm.Add.Imm(asm.R3, -sourceLen-4),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnSkSelectReuseport.Call(),
	}
}

// Choose makes the selector choose a socket, which listens with SO_REUSEPORT. A socket can
// not have two slots: after Pass with it, call EndPass before.
func (s *Selector) Choose(fd int) error {
	if err := s.choice.Put(uint32(chosenSlot), uint64(fd)); err != nil {
		return fmt.Errorf("choose a socket: %w", err)
	}
	return nil
}

// Unchoose removes the choice.
func (s *Selector) Unchoose() error { return s.empty(chosenSlot) }

// Pass steers new connections from one address to a socket of the group, in place of the
// chosen one, until end is called. The address is one of this host. Of an IPv6 address the
// last four bytes are compared. There is one such socket: that of the last call. Call it
// from one goroutine at a time.
func (s *Selector) Pass(from netip.AddrPort, fd int) (end func(), err error) {
	// EBUSY: it is there already (reuseport_array_update_check).
	if err := s.choice.Put(uint32(passSlot), uint64(fd)); err != nil && !errors.Is(err, unix.EBUSY) {
		return nil, fmt.Errorf("let a source pass to a socket: %w", err)
	}
	addr := from.Addr().Unmap().AsSlice()
	key := make([]byte, sourceLen)
	copy(key, addr[len(addr)-4:])
	binary.BigEndian.PutUint16(key[4:], from.Port())
	if err := s.passing.Put(key, uint32(passSlot)); err != nil {
		return nil, fmt.Errorf("let a source pass: %w", err)
	}
	return func() { _ = s.passing.Delete(key) }, nil // it is there
}

// EndPass removes the socket of Pass.
func (s *Selector) EndPass() error { return s.empty(passSlot) }

func (s *Selector) empty(slot uint32) error {
	if err := s.choice.Delete(slot); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("remove the choice of a socket: %w", err)
	}
	return nil
}

// Attach attaches the selector to the group of a socket, in place of the group's
// present program.
func (s *Selector) Attach(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_EBPF, s.program.FD()); err != nil {
		return fmt.Errorf("attach a BPF program to a group of sockets: %w", err)
	}
	return nil
}

// Close closes the selector. It stays attached to its group until Detach.
func (s *Selector) Close() {
	_ = errors.Join(s.program.Close(), s.passing.Close(), s.choice.Close()) // nil ones need no Close
}

// Detach removes the program from the group of a socket, if it has one.
func Detach(fd int) error {
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_REUSEPORT_BPF, 0)
	// The socket is in no group, or in one without a program.
	if err != nil && err != unix.ENOENT && err != unix.EINVAL {
		return fmt.Errorf("detach the BPF program of a group of sockets: %w", err)
	}
	return nil
}

// BindHook sets SO_REUSEPORT and SO_REUSEADDR on sockets when they are bound.
type BindHook struct{ links []link.Link }

// HookBind hooks TCP's bind(2) to one of the ports, in the network namespace of
// the cookie (NetnsCookie) and by any process in or below the cgroup at path, a
// directory of cgroup2.
func HookBind(path string, cookie uint64, ports []uint16) (*BindHook, error) {
	h := &BindHook{}
	for _, at := range []ebpf.AttachType{ebpf.AttachCGroupInet4Bind, ebpf.AttachCGroupInet6Bind} {
		if err := h.add(path, at, bindInstructions(cookie, ports)); err != nil {
			h.Close()
			return nil, fmt.Errorf("hook bind(2) in %s: %w", path, err)
		}
	}
	return h, nil
}

func (h *BindHook) add(path string, at ebpf.AttachType, ins asm.Instructions) error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "hf_bind", Type: ebpf.CGroupSockAddr, AttachType: at, License: license, Instructions: ins,
	})
	if err != nil {
		return err
	}
	defer p.Close() // the link keeps the program
	l, err := link.AttachCgroup(link.CgroupOptions{Path: path, Attach: at, Program: p})
	if err != nil {
		return err
	}
	h.links = append(h.links, l)
	return nil
}

// Close removes the hook.
func (h *BindHook) Close() {
	for _, l := range h.links {
		_ = l.Close()
	}
	h.links = nil
}

// Offsets in struct bpf_sock_addr of include/uapi/linux/bpf.h.
const (
	addrPort = 24 // user_port, in network byte order
	addrType = 32 // type
)

// bindInstructions always allow the bind (1). If type, port and network namespace
// match, they set the options first.
func bindInstructions(cookie uint64, ports []uint16) asm.Instructions {
	const options, out = "options", "out"
	ins := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, addrType, asm.Word),
		asm.JNE.Imm(asm.R2, unix.SOCK_STREAM, out),
		asm.LoadMem(asm.R2, asm.R6, addrPort, asm.Word),
	}
	for _, p := range ports {
		onWire := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, p))
		ins = append(ins, asm.JEq.Imm(asm.R2, int32(onWire), options))
	}
	ins = append(ins,
		asm.Ja.Label(out),
		asm.Mov.Reg(asm.R1, asm.R6).WithSymbol(options),
		asm.FnGetNetnsCookie.Call(),
		asm.LoadImm(asm.R1, int64(cookie), asm.DWord),
		asm.JNE.Reg(asm.R0, asm.R1, out),
		asm.StoreImm(asm.R10, -4, 1, asm.Word),
	)
	for _, option := range []int32{unix.SO_REUSEPORT, unix.SO_REUSEADDR} {
		ins = append(ins,
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.Mov.Imm(asm.R2, unix.SOL_SOCKET),
			asm.Mov.Imm(asm.R3, option),
			asm.Mov.Reg(asm.R4, asm.R10),
			asm.Add.Imm(asm.R4, -4),
			asm.Mov.Imm(asm.R5, 4),
			asm.FnSetsockopt.Call(),
		)
	}
	return append(ins,
		asm.Mov.Imm(asm.R0, 1).WithSymbol(out),
		asm.Return(),
	)
}

// NetnsCookie names the network namespace of a socket (SO_NETNS_COOKIE, Linux
// 5.14).
func NetnsCookie(fd int) (uint64, error) {
	c, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("read the cookie of a network namespace: %w", err)
	}
	return c, nil
}
